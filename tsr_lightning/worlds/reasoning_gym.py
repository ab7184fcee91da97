"""The data sets of reasoning-gym (github.com/open-thought/reasoning-gym, Apache-2.0), one question and answer each.

`--data.env tsr_lightning.worlds.reasoning_gym:ReasoningGym-v0 --data.env_kwargs.dataset basic_arithmetic`
"""

from typing import Any

import gymnasium

from tsr_lightning.envs.global_random import lent
from tsr_lightning.envs.rows import Row
from tsr_lightning.envs.single_turn import SolvedSingleTurnEnv
from tsr_lightning.errors import ConfigError

_RULE = "Write the final answer between <answer> and </answer>."


class ReasoningGym(SolvedSingleTurnEnv):
    """Questions of a data set, and its own score of the answer between the last <answer> and </answer>.

    Args:
        dataset: its name, such as `basic_arithmetic`.
        size: number of questions.
        seed: names them.
        config: further arguments of the data set.
        success_at: the score from which on an answer is a success.
        instructions: the system message.
    """

    def __init__(
        self,
        dataset: str,
        *,
        size: int = 1000,
        seed: int = 0,
        config: dict[str, Any] | None = None,
        success_at: float = 1.0,
        instructions: str = _RULE,
    ) -> None:
        try:
            import reasoning_gym
            from reasoning_gym.utils import extract_answer
        except ImportError as error:
            remedy = "pip install 'tsr-lightning[reasoning-gym]'"
            raise ConfigError(f"ReasoningGym needs the package reasoning-gym ({error}): {remedy}.") from error
        try:
            with lent(seed):
                made = reasoning_gym.create_dataset(dataset, size=size, seed=seed, **(config or {}))
                entries = [made[index] for index in range(size)]
                for each in entries[:1]:  # so that a score that cannot work is not taken for wrong answers below
                    made.score_answer(answer=each["answer"], entry=each)
        except (ValueError, TypeError, AssertionError) as error:
            key = f"ReasoningGym.dataset is {dataset!r}, with config {config!r}"
            raise ConfigError(
                f"{key}: reasoning-gym refuses it ({error}); give a name and arguments of its own."
            ) from error

        def score(response: str, row: Row) -> float:
            with lent(seed):
                try:
                    return float(made.score_answer(answer=extract_answer(response), entry=row["entry"]))
                except Exception:  # of any class: most scores take no text but one of their own form
                    return 0.0

        rows = [
            {"prompt": each["question"], "solution": f"<answer>{each['answer']}</answer>", "entry": each}
            for each in entries
        ]
        super().__init__(rows, score, success_at=success_at, instructions=instructions)


gymnasium.register("ReasoningGym-v0", "tsr_lightning.worlds.reasoning_gym:ReasoningGym")
