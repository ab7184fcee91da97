"""A text environment whose observations have as many words as one asks for: every answer opens another page.

Pages are drawn by what was answered so far, so no two branches read the same; an episode ends after its turns and
never before, and never with a success. Knows no torch and no tokenizer.
"""

import time
from collections.abc import Hashable, Iterator
from typing import Any

import gymnasium

from tsr_lightning.envs.text import CHARSET
from tsr_lightning.rng import Key

ID = "benchmarks.performance.world:Pages-v0"
_ONSETS = ("b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "br", "st", "tr", "pl")
_RHYMES = ("a", "e", "i", "o", "u", "an", "el", "in", "or", "ust", "and", "est", "ing", "old", "ane", "eed", "ite")
WORDS = tuple(f"{onset}{rhyme}" for onset in _ONSETS for rhyme in _RHYMES)
PAGE_START = "page"  # a page's first word; the others have a blank before them


class Pages(gymnasium.Env[str, str]):
    """A walk from page to page.

    Args:
        words: of a page; each is one token of `workload.make_vocabulary`.
        turns: answers of an episode.
        wait: seconds that a step waits, as it would for a page from elsewhere.
    """

    instructions = "read the page and answer with words every answer opens another page some pages are better"
    metadata = {"render_modes": []}  # noqa: RUF012  (gymnasium's)
    observation_space = action_space = gymnasium.spaces.Text(100_000, min_length=0, charset=CHARSET)

    def __init__(self, words: int = 190, turns: int = 5, wait: float = 0.0) -> None:
        self.words = words
        self.turns = turns
        self.wait = wait
        self.page, self.turn = Key(0), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        number = int(self.np_random.integers(2**31)) if seed is None else seed
        self.page, self.turn = Key(number).fold_in("page"), 0
        return self._read(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.wait:
            time.sleep(self.wait)
        before = self.score()
        self.page, self.turn = self.page.fold_in(action), self.turn + 1
        ended = self.turn >= self.turns
        info = {"success": False, "action_is_valid": bool(action), "action_is_effective": True}
        return self._read(), self.score() - before, ended, False, info

    def get_state(self) -> Hashable:
        return (self.page, self.turn)

    def set_state(self, state: Any, /) -> None:
        self.page, self.turn = state

    def reseed(self, key: Key, /) -> None:
        """Nothing is random after reset."""

    def score(self) -> float:
        return self.page.fold_in("score").uniform()

    def state_key(self) -> Hashable:
        return self.page.value

    def remaining(self) -> int:
        return self.turns - self.turn

    def legal_actions(self) -> list[str]:
        return list(WORDS[:4])

    def _read(self) -> str:
        drawn = self.page.generator().integers(len(WORDS), size=max(0, self.words - 1))
        return " ".join([PAGE_START, *(WORDS[i] for i in drawn)])


def texts() -> Iterator[str]:
    """All words that are said, for a vocabulary."""
    yield Pages.instructions
    yield PAGE_START
    yield " ".join(["", *WORDS])


gymnasium.register("Pages-v0", f"{__name__}:Pages")
