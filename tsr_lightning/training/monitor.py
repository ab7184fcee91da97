"""Reports the progress of rollouts to callbacks, and warns where hardly any response is a valid action."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info

from tsr_lightning.costs import Costs
from tsr_lightning.search.driver import ProgressFn
from tsr_lightning.training.hooks import OnRolloutWave, RolloutProgress
from tsr_lightning.training.lightning_compat import callbacks
from tsr_lightning.trajectory import Group, Origin

FEW_VALID = 0.05  # of the responses: a policy that knows the answer format is far above it, however well it plays
_EXCERPT = 60  # characters of a response


@dataclass(frozen=True, slots=True)
class Wave:
    """How far a rollout was when a wave had ended."""

    done: int  # searches that have ended
    total: int
    costs: Costs  # of this rollout so far
    seconds: float
    hidden_seconds: float = 0.0  # of these, in which the updates did not wait for it


WaveFn = Callable[[Wave], None]


def timed(report: WaveFn) -> ProgressFn:
    """Reports waves with the seconds from now on."""
    started = time.perf_counter()
    return lambda done, total, costs: report(Wave(done, total, costs, time.perf_counter() - started))


class RolloutMonitor:
    """Watches the rollouts of a run, those of evaluations included."""

    def __init__(self, max_response_tokens: int) -> None:
        self._max_response_tokens = max_response_tokens
        self._rollouts = 0
        self._warned = False

    def start(self, trainer: Trainer, phase: str) -> WaveFn:
        """Begins a rollout; what it returns reports each wave to the callbacks."""
        self._rollouts += 1
        number = self._rollouts
        listeners = [callback for callback in callbacks(trainer) if isinstance(callback, OnRolloutWave)]

        def report(wave: Wave) -> None:
            for callback in listeners:
                progress = RolloutProgress(
                    number, phase, wave.done, wave.total, wave.costs, wave.seconds, wave.hidden_seconds
                )
                callback.on_rollout_wave(trainer, progress)

        return report

    def finish(self, phase: str, groups: Sequence[Group]) -> None:
        """Warns, once in a run, where hardly any response is a valid action."""
        problem = None if self._warned else few_valid_actions(groups, self._max_response_tokens)
        if problem is not None:
            rank_zero_info(f"{phase}: {problem}")
            self._warned = True


def few_valid_actions(groups: Sequence[Group], max_response_tokens: int) -> str | None:
    """One sentence with the likely reason why hardly any response is a valid action; None where enough are.

    Demonstrations are left out.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    turns = [turn for t in trajectories if t.origin is not Origin.DEMONSTRATED for turn in t.turns]
    invalid = [turn for turn in turns if not turn.valid]
    if not turns or len(turns) - len(invalid) >= FEW_VALID * len(turns):
        return None
    cut = sum(not turn.finished for turn in invalid)
    if 2 * cut > len(invalid):
        reason = (
            f"{cut / len(invalid):.0%} were cut off at data.sampling.max_response_tokens = {max_response_tokens}: "
            "raise it, or ask for shorter answers"
        )
    else:
        reason = (
            "the policy was not taught the form of answer that the environment asks for: give data.env_kwargs (such as "
            "prompt_style) as it was trained with, or begin with configs/warm_start"
        )
    rate = 1 - len(invalid) / len(turns)
    return f"{rate:.1%} of {len(turns):,} responses are valid actions, unlike {invalid[0].text[:_EXCERPT]!r}; {reason}"
