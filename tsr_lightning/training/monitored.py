"""Checks before a model loads that what EarlyStopping and ModelCheckpoint monitor is a figure that the run logs.

Lightning finds out when it looks for the figure, which is after the first validation or later.
"""

from collections.abc import Sequence
from difflib import get_close_matches

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from tsr_lightning.errors import ConfigError
from tsr_lightning.objectives.rehearsal import loss_of_made_up_tokens
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.hooks import NamesMetrics
from tsr_lightning.training.metrics import step_metrics

_OWN = ("callbacks", "lightning", "tsr_lightning")  # packages whose callbacks log nothing but what is named here
_NORMS = ("train/grad_norm_policy", "train/grad_norm_critic")
_POSITIONS = ("epoch", "step")  # which Lightning gives a ModelCheckpoint


def check_monitors(callbacks: Sequence[Callback], agent: Agent, data: RolloutDataModule) -> None:
    """Refuses a monitor of a figure that is never logged. A callback of the user's own may log any, so that beside one
    nothing is refused.

    Raises:
        ConfigError: it names the callback, the figure and one that is logged.
    """
    if any(type(callback).__module__.partition(".")[0] not in _OWN for callback in callbacks):
        return
    figures = logged_figures(callbacks, agent, data)
    for callback in callbacks:
        if isinstance(callback, EarlyStopping) and callback.strict:
            _check(type(callback).__name__, callback.monitor, figures)
        if isinstance(callback, ModelCheckpoint) and callback.monitor not in (None, *_POSITIONS):
            _check(type(callback).__name__, str(callback.monitor), figures)


def logged_figures(callbacks: Sequence[Callback], agent: Agent, data: RolloutDataModule) -> frozenset[str]:
    """The names that `trainer.callback_metrics` may have in a fit."""
    environments = [entry.label for entry in data.mixture]
    named = [each.metric_names(data.evaluations, environments) for each in callbacks if isinstance(each, NamesMetrics)]
    loss = loss_of_made_up_tokens(agent.objective)
    sums = {"loss": loss.total, "policy_weight": loss.policy_weight, **loss.stats}
    maxima = {name: figure.item() for name, figure in loss.maxima.items()}
    steps = step_metrics({name: figure.item() for name, figure in sums.items()}, maxima)
    return frozenset([*steps, *_NORMS]).union(*named)


def _check(name: str, monitor: str, figures: frozenset[str]) -> None:
    if monitor in figures:
        return
    close = get_close_matches(monitor, sorted(figures), n=1)
    success = sorted(figure for figure in figures if figure.endswith("/success_rate"))
    remedy = f"did you mean {close[0]}?" if close else f"give one such as {[*success, 'train/loss'][0]}"
    raise ConfigError(f"{name}.monitor is {monitor}, which this run does not log: {remedy}")
