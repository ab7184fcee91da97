"""The check before a run that merges states, where what an environment depends on fails."""

from typing import Any

import pytest

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
