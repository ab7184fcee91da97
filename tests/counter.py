"""An environment of two tools, for tests: count to a number of the instance."""

from typing import NamedTuple

import gymnasium

from tsr_lightning.envs.tool_env import ToolEnv


class Count(NamedTuple):
    """The state."""

    goal: int
    count: int = 0
    closed: bool = False


class Counter(ToolEnv[Count]):
    """Add up to the goal, and finish."""

    instructions = "Count."

    def __init__(self, max_turns: int = 5, **others):
        super().__init__(max_turns=max_turns, **others)

    def initial_state(self, seed: int) -> Count:
        return Count(2 + seed % 3)

    def ask(self) -> str:
        return f"Count to {self.state.goal}."

    def add(self, number: int) -> str:
        """Adds a number.

        Args:
            number: what is added.
        """
        self.state = self.state._replace(count=self.state.count + number)
        return f"The count is {self.state.count}."

    def finish(self) -> str:
        """Ends the counting."""
        self.state = self.state._replace(closed=True)
        return "Finished."

    tool_functions = (add, finish)

    def reward(self, before: Count) -> float:
        return float(self.success())

    def success(self) -> bool:
        return self.state.closed and self.state.count == self.state.goal

    def ended(self) -> bool:
        return self.state.closed

    def score(self) -> float:
        return 1.0 if self.success() else 0.5 / (1 + abs(self.state.goal - self.state.count))

    def legal_actions(self) -> list[str]:
        if self.episode.over or not self.remaining():
            return []
        return [self.written(Counter.add, number=1), self.written(Counter.add, number=2), self.written(Counter.finish)]

    def oracle(self, noise=0.0, key=None) -> str:
        left = self.state.goal - self.state.count
        return self.written(Counter.add, number=left) if left else self.written(Counter.finish)


gymnasium.register("Counter-v0", Counter)
