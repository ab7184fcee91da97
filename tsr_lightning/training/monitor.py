"""Reports the progress of rollouts to callbacks, and says once what is wrong with their responses."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info

from tsr_lightning.costs import Costs
from tsr_lightning.search.driver import ProgressFn
from tsr_lightning.training.answer_notice import AnswerForm, ended_by_tokens, few_valid_actions
from tsr_lightning.training.hooks import OnRolloutWave, RolloutProgress
from tsr_lightning.training.lightning_compat import callbacks
from tsr_lightning.trajectory import Group


@dataclass(frozen=True, slots=True)
class Wave:
    """How far a rollout was when a wave had ended."""

    done: int  # searches that have ended
    total: int
    costs: Costs  # of this rollout so far
    seconds: float
    spent: float  # share of the searches' budgets
    hidden_seconds: float = 0.0  # of these, in which the updates did not wait for it


WaveFn = Callable[[Wave], None]


def timed(report: WaveFn) -> ProgressFn:
    """Reports waves with the seconds from now on."""
    started = time.perf_counter()
    return lambda done, total, costs, spent: report(Wave(done, total, costs, time.perf_counter() - started, spent))


class RolloutMonitor:
    """Watches the rollouts of a run, those of evaluations included.

    Args:
        max_response_tokens: of a response.
        context_tokens: gives the most tokens of a prompt and its response, once the model is there.
        episode_tokens: the most response tokens of an episode; None for no limit.
        form: gives the form of answer of the environment with an index.
    """

    def __init__(
        self,
        max_response_tokens: int,
        context_tokens: Callable[[], int],
        episode_tokens: int | None,
        form: Callable[[int], AnswerForm],
    ) -> None:
        self._max_response_tokens = max_response_tokens
        self._context_tokens = context_tokens
        self._episode_tokens = episode_tokens
        self._form = form
        self._rollouts = 0
        self._said_few_valid = False
        self._said_ended = False

    def start(self, trainer: Trainer, phase: str) -> WaveFn:
        """Begins a rollout; what it returns reports each wave to the callbacks."""
        self._rollouts += 1
        number = self._rollouts
        listeners = [callback for callback in callbacks(trainer) if isinstance(callback, OnRolloutWave)]

        def report(wave: Wave) -> None:
            for callback in listeners:
                progress = RolloutProgress(
                    number, phase, wave.done, wave.total, wave.costs, wave.seconds, wave.spent, wave.hidden_seconds
                )
                callback.on_rollout_wave(trainer, progress)

        return report

    def finish(self, phase: str, groups: Sequence[Group]) -> None:
        """Says, once in a run each, that hardly any response is a valid action, and that a token limit ended
        episodes."""
        if not self._said_few_valid:
            problem = few_valid_actions(groups, self._max_response_tokens, self._form)
            self._said_few_valid = _said(phase, problem)
        if not self._said_ended:
            problem = ended_by_tokens(groups, self._context_tokens(), self._episode_tokens)
            self._said_ended = _said(phase, problem)


def _said(phase: str, problem: str | None) -> bool:
    if problem is not None:
        rank_zero_info(f"{phase}: {problem}")
    return problem is not None
