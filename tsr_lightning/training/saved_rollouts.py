"""Rollouts that are read from saved episodes instead of being played: `data.replay`."""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from tsr_lightning.costs import Costs
from tsr_lightning.episodes.convert import messages_of, prompts, to_trajectory
from tsr_lightning.episodes.files import as_written, read, read_header, read_lines
from tsr_lightning.episodes.folder import files_at
from tsr_lightning.episodes.schema import ROLLOUT, Episode, Header
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.objectives.base import Objective
from tsr_lightning.objectives.signal import has_signal
from tsr_lightning.policy.chat import Chat, Context
from tsr_lightning.rollout.actor import Actor
from tsr_lightning.rollout.collect import Collected, RolloutSpec
from tsr_lightning.rollout.groups import Rollout
from tsr_lightning.rollout.instances import Instances
from tsr_lightning.rollout.saved import saved_context
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.agent import Agent
from tsr_lightning.trajectory import Group, Origin, Trajectory

_KEY = "data.replay"


class SavedRollouts:
    """The rollout of one epoch after the other, as a run with `callbacks.EpisodeLog` kept them.

    Args:
        trainer: of the fit.
        agent: whose policy is trained.
        spec: what the run would roll out.
        path: of a run's folder, a folder of episodes, or the file of one epoch.
        envs: the environments of the run, to be compared with those of the files.
        instances: of the run, of which none that is held out may be trained on.
        context: of the run's prompts, to be compared with that of the files.

    Raises:
        ConfigError: the last epochs of the run are not there, or a rollout has no episodes, or was played in other
            environments, at another temperature or under another context, or on held-out instances.
    """

    def __init__(
        self,
        trainer: Trainer,
        agent: Agent,
        spec: RolloutSpec,
        path: str,
        envs: Sequence[Mapping[str, Any]],
        instances: Instances,
        context: Context,
    ) -> None:
        self._trainer = trainer
        self._agent = agent
        self._spec = spec
        self._path = path
        self._instances = instances
        headers = [(header, file) for file in files_at(Path(path)) for header in [read_header(file)]]
        self._files = {header.epoch: file for header, file in headers if header.phase == ROLLOUT}
        self._require(range(max(self._files, default=-1) + 1, self._limit))  # the others once the first epoch is known
        for header, file in headers:
            if header.phase == ROLLOUT:
                _check(header, file, envs, agent.temperature, saved_context(context))
                self._check_lines(file)

    @property
    def _limit(self) -> int:
        return compat.epoch_limit(self._trainer) or 0

    def check(self, epoch: int) -> None:
        """Refuses a run that goes on with an epoch, once that is known, before it evaluates.

        Raises:
            ConfigError: this epoch or a later one of the run is not there.
        """
        self._require(range(epoch, max(self._limit, epoch + 1)))

    def take(self, epoch: int, actor: Actor) -> Collected | None:
        """As `Rollouts.take`.

        Raises:
            ConfigError: this epoch or a later one of the run is not there.
        """
        self.check(epoch)
        started = time.perf_counter()
        self._agent.weights.gather()
        if not self._spec.plan.group_size(epoch):
            return None
        _, episodes = read(self._files[epoch])
        objective = self._agent.objective.at(epoch)
        _check_episodes(episodes, self._files[epoch], objective, actor)
        restored = partial(to_trajectory, tree=objective.needs.tree, state_keys=objective.needs.state_keys)
        groups = _groups(list(map(restored, episodes)))
        first = {(each.env, each.instance): (each.env, each.state) for each in episodes if each.state}
        self._instances.add_replayed(epoch, list(first.values()))
        signal = sum(has_signal(group, objective) for group in groups) if self._spec.sampling(epoch) else 0
        rollout = Rollout(groups, Costs(), with_signal=signal, searches=len(episodes))
        seconds = time.perf_counter() - started
        return Collected(rollout, None, seconds, peak_mib=0.0, waited=seconds)

    def discard_pending(self) -> None:
        """Does nothing: none is collected ahead."""

    def stop(self) -> None:
        """Does nothing: there is no thread."""

    def close(self) -> None:
        """Does nothing: files are read whole."""

    def state_dict(self, epoch: int) -> dict[str, Any]:
        """Nothing: the files stay where they are."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Does nothing."""

    def _check_lines(self, file: Path) -> None:
        """Refuses a file without episodes, and those of held-out instances, as `tsr rollout` plays them: a policy that
        is trained on them learns nothing new from its evaluation."""
        is_empty = True
        for line in read_lines(file):
            is_empty = False
            if line.episode is not None and self._instances.is_held_out(line.episode.state):
                raise ConfigError(
                    f"{_KEY} is {self._path!r}: {file} has episodes of held-out instances (seed "
                    f"{line.episode.instance}), on which this run is evaluated: hold out others by data.held_out.seed, "
                    "or give the one that the episodes were rolled out with"
                )
        remedy = "it has no episodes, as where a game was left before its first turn: give a file that has some"
        require(not is_empty, _KEY, str(file), remedy)

    def _require(self, epochs: Iterable[int]) -> None:
        missing = [epoch for epoch in epochs if self._spec.plan.group_size(epoch) and epoch not in self._files]
        if missing:
            raise self._missing(missing[0])

    def _missing(self, epoch: int) -> ConfigError:
        return ConfigError(
            f"{_KEY} is {self._path!r}: it has no rollout of epoch {epoch}; keep those of all epochs with "
            "--trainer.callbacks.EpisodeLog.every_n_epochs 1 and an EpisodeLog.max_mib that they fit in, or train for "
            "fewer with trainer.max_epochs"
        )


def _check(
    header: Header, file: Path, envs: Sequence[Mapping[str, Any]], temperature: float, context: Mapping[str, Any]
) -> None:
    played = [(each["env"], each["env_kwargs"]) for each in header.envs]
    now = [(each["env"], as_written(each["env_kwargs"])) for each in envs]
    require(played == now, _KEY, str(file), f"it was played in {_named(played)}, and the run has {_named(now)}")
    remedy = f"its responses were sampled at temperature {header.temperature}, and the run has {temperature}"
    require(header.temperature == temperature, _KEY, str(file), remedy)
    remedy = f"its prompts are those of data.context {_shown(header.context)}, and the run has {_shown(context)}"
    require(header.context == as_written(context), _KEY, str(file), remedy)


def _shown(context: Mapping[str, Any]) -> str:
    return _as_call(context["class_path"].rpartition(".")[2], context["init_args"])


def _check_episodes(episodes: Sequence[Episode], file: Path, objective: Objective, actor: Actor) -> None:
    """Refuses demonstrations that an objective does not learn from, and prompts in another model's tokens."""
    name, first = type(objective).__name__, episodes[0] if episodes else None
    takes = objective.takes_demonstrations or all(each.origin != Origin.DEMONSTRATED.value for each in episodes)
    remedy = f"its episodes are demonstrations, and {name} learns from samples of the policy: use the objective SFT"
    require(takes, _KEY, str(file), remedy)
    remedy = "its responses are other tokens than this model's: give the model that the file names"
    require(first is None or _is_in_tokens_of(actor.chat, first), _KEY, str(file), remedy)


def _is_in_tokens_of(chat: Chat, episode: Episode) -> bool:
    of_nodes = prompts(episode)
    reads = all(chat.read(node.response, of_nodes[node.id]) == node.text for node in episode.nodes)
    return reads and of_nodes[0] == chat.prompt((), messages_of(episode.observation))


def _named(envs: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    return ", ".join(_as_call(env, own) for env, own in envs)


def _as_call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _groups(trajectories: Sequence[Trajectory]) -> list[Group]:
    """Trajectories of one instance are a group, whose members are numbered upwards."""
    groups: list[list[Trajectory]] = []
    for each in trajectories:
        last = groups[-1][-1] if groups else None
        goes_on = last is not None and (last.env, last.instance) == (each.env, each.instance)
        if last is not None and goes_on and each.member > last.member:
            groups[-1].append(each)
        else:
            groups.append([each])
    return [Group(own[0].instance, tuple(own), own[0].env) for own in groups]
