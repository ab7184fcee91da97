"""The check before a run that merges states: keys that say too little, and failures of what an environment needs."""

from typing import Any

import pytest
from corridor import Corridor

from tsr_lightning.envs.checker import BranchabilityError, check_branchable
from tsr_lightning.envs.checker.merging import check_merging
from tsr_lightning.envs.frozen_lake.env import TextFrozenLake
from tsr_lightning.errors import ConfigError, EnvFault


class Failing(TextFrozenLake):
    """Every `every`-th step fails, as a page that does not load."""

    every, steps = 100, 0

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps % self.every == 0:
            raise EnvFault("the page did not load")
        return super().step(action)


@pytest.mark.parametrize("every", [1, 100, 500])
def test_failures_end_no_run(every: int) -> None:
    env = Failing(prompt_style="bare", success_rate=1.0)
    env.every = every
    check_merging(env, "GraphCredit", takes_best=True)
    assert env.steps >= every


def test_what_is_seen_between_failures_counts() -> None:
    env = Failing(prompt_style="bare", success_rate=0.5)
    env.every = 2000
    with pytest.raises(ConfigError, match="equal actions in one state of Failing had two outcomes"):
        check_merging(env, "GraphCredit", takes_best=True)


class Errand(Corridor):
    """Fetch something at the right end and bring it back to the left one. With `forgets`, the key says where one is,
    and not whether one has it."""

    length, turns = 5, 30
    forgets = True

    def __init__(self) -> None:
        super().__init__(slip=0.0)
        self.has_it = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.has_it = (seed or 0) % 2, False
        return self._shown(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        before = self.place
        step = {"r": 1, "l": -1}.get(action, 0)
        self.place = min(max(before + step, 0), self.length)
        self.turn += 1
        self.has_it = self.has_it or self.place == self.length
        success = self.has_it and self.place == 0
        info = {"success": success, "action_is_valid": bool(step), "action_is_effective": self.place != before}
        return self._shown(), float(success), success, self.turn == self.turns and not success, info

    def _shown(self) -> str:
        return f"place {self.place}, turn {self.turn}" + ", with it" * self.has_it

    def get_state(self) -> Any:
        return (self.place, self.turn, self.has_it)

    def set_state(self, state: Any) -> None:
        self.place, self.turn, self.has_it = state

    def score(self) -> float:
        return 1.0 if self._is_solved else 0.2

    def state_key(self) -> Any:
        return self.place if self.forgets else (self.place, self.has_it)

    def remaining(self) -> int:
        return self.turns - self.turn

    def legal_actions(self) -> list[str]:
        return [] if self._is_solved or self.turn == self.turns else ["l", "r"]

    @property
    def _is_solved(self) -> bool:
        return self.has_it and self.place == 0


class FullErrand(Errand):
    forgets = False


@pytest.mark.parametrize("takes_best", [True, False])
def test_what_was_done_many_turns_ago_and_shows_many_turns_later(takes_best: bool) -> None:
    """Within three turns of a state nothing shows that the key forgets."""
    with pytest.raises(
        ConfigError, match=r"GraphCredit takes states with equal keys for one, and Errand .* state_key: "
    ):
        check_merging(Errand(), "GraphCredit", takes_best)
    with pytest.raises(BranchabilityError, match=r"state_key: it is equal after .* and the reward is "):
        check_branchable(Errand)
    check_merging(FullErrand(), "GraphCredit", takes_best)
    check_branchable(FullErrand)
