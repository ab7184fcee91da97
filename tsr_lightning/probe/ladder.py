"""A ladder of tiny tasks, on the user's own model, objective, optimizer and search: each isolates what can fail, and
has a value to reach. The idea is AgileRL's (probe environments, github.com/AgileRL/AgileRL); the tasks are our own.

A rung's episodes are a few answers of one token, so that it takes seconds on a small model. It ends where its value is
reached, or after so many epochs.
"""

from collections.abc import Callable, Iterator
from functools import partial

from tsr_lightning.errors import ConfigError, RunError
from tsr_lightning.probe import rungs
from tsr_lightning.probe.answers import choose
from tsr_lightning.probe.parts import Fit, Outcome, Probed, rung_trainer
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.setting_checks import check_processes


def probe(agent: Agent, data: RolloutDataModule, trainer: Fit) -> Iterator[Outcome]:
    """Climbs the ladder with the parts of a run, and yields what came of each rung.

    Each rests on those before it, so that the first failure is the last rung.

    Args:
        agent: whose model, objective and optimizer are probed; its own weights stay as they are.
        data: whose plan, engine, context and updates are.
        trainer: arguments of the Trainer, such as `accelerator`, `precision` and `gradient_clip_val`.

    Raises:
        ConfigError: the model cannot be asked for one of two answers, or a launcher started several processes.
    """
    check_processes(rung_trainer(trainer), together=False)
    probed = Probed(agent, data, trainer, choose(agent.spec, data.sampling.temperature, agent.seed))
    for name, rung in _rungs(probed):
        outcome = _guarded(name, partial(rung, name, probed))
        yield outcome
        if outcome.fault:
            return


def _rungs(probed: Probed) -> Iterator[tuple[str, rungs.Rung]]:
    """Searches before learning, which trains on what they find; those that ask a critic after it has learnt."""
    yield from (("search", partial(rungs.searching, search=search)) for search in probed.searches(by_critic=False))
    yield from rungs.LEARNING.items()
    if probed.objective.needs.values:
        yield "critic", rungs.critic
    yield from (("search", partial(rungs.searching, search=search)) for search in probed.searches(by_critic=True))


def _guarded(name: str, rung: Callable[[], Outcome]) -> Outcome:
    """Climbs a rung whose run may be refused or stopped by its own checks."""
    try:
        return rung()
    except (RunError, ConfigError) as error:
        return Outcome(name, 0.0, 1.0, "the run was refused or stopped, success", str(error))
