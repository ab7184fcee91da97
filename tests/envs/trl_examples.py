"""An environment class as users of TRL write it, without a line of this project: the form of TRL's documentation."""

import random


class IncrementEnv:
    """Count up to a number."""

    def reset(self, goal: int = 3, **kwargs) -> str | None:
        self.counter, self.goal, self.lucky = 0, int(goal), random.random()
        return f" Reach {self.goal}."

    def increment(self, step: int) -> int:
        """Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        if step > 2:
            raise ValueError("too far")
        self.counter += step
        return self.counter

    def get_reward(self) -> float:
        return 1.0 if self.counter == self.goal else 0.1 * (self.counter > 0)


def reward_func(environments, **kwargs):
    return [float(environment.counter) for environment in environments]
