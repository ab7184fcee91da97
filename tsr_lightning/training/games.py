"""`tsr play`: a person's games in a file of episodes."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from tsr_lightning.episodes.convert import prompts, to_episode
from tsr_lightning.episodes.files import read, write
from tsr_lightning.episodes.schema import ROLLOUT, Episode, Header
from tsr_lightning.errors import ConfigError, RunError, require
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import Scratch
from tsr_lightning.rollout.instances import Instance
from tsr_lightning.rollout.person import Person
from tsr_lightning.rollout.saved import header_of
from tsr_lightning.rollout.terminal import Terminal
from tsr_lightning.search.driver import SearchTask
from tsr_lightning.training.datamodule import RolloutDataModule
from tsr_lightning.training.estimates import logprobs_behind


def play_games(data: RolloutDataModule, output: Path, instance: int | None, epochs: int) -> None:
    """Plays games at the terminal until the person quits, and adds each to the file when it ends.

    Args:
        data: whose training instances are played, so that none is held out.
        output: the file, a rollout of epoch 0 as `data.replay` reads it.
        instance: the seed of the first game's first state; None takes the next training instance.
        epochs: that the policy was trained for.
    """
    actor = data.actor
    if isinstance(actor.policy.spec.model, Scratch) and not epochs:
        print("The policy is a new model, which has learnt nothing: --model.policy.model names another")
    header = header_of(actor, ROLLOUT, epoch=0)
    games = _earlier(output, header)
    try:
        write(output, header, games)
    except OSError as error:  # told before a game is played
        raise ConfigError(f"output is {output}, which cannot be written ({error.strerror}): give another") from error
    actor.sync()
    driver = actor.driver(record=True)
    screen = Terminal(driver.simulator, actor.chat)
    try:
        for env, seed in _instances(data, len(games), instance):
            [played] = driver.survivors(
                [SearchTask(seed, 0, Person(screen), data.key.fold_in("game", len(games)), env)]
            )
            if played is None:
                raise RunError(f"the environment failed, and this game is lost: {data.retry.last}")
            if played.turns:
                games.append(_with_logprobs(to_episode(played), actor.policy, data))
                write(output, header, games)
                print(f"game {len(games)} of {output}: return {played.episode_return:.4g}")
            if not screen.goes_on:
                return
    finally:
        data.close()


def _earlier(output: Path, header: Header) -> list[Episode]:
    """The games that the file has already."""
    if not output.exists():
        return []
    earlier, games = read(output)
    remedy = "its games were played in another environment, by another model or under other settings: name another file"
    require(earlier == header, "output", str(output), remedy)
    return games


def _instances(data: RolloutDataModule, played: int, first: int | None) -> Iterator[Instance]:
    """The instance of every game: the training instances of epoch 0, in their order."""
    if first is not None:
        yield 0, first
    for place in count(played):
        drawn = data.instances.training(0, 1, place).instances
        yield from (instance for instance in drawn if instance is not None)


def _with_logprobs(game: Episode, policy: Policy, data: RolloutDataModule) -> Episode:
    """A game whose typed responses have the log-probabilities that the policy would have sampled them with."""
    pairs = [(prompt, node.response) for prompt, node in zip(prompts(game), game.nodes, strict=True)]
    logprobs = logprobs_behind(policy, pairs, data.sampling.temperature, data.updates.tokens_at_once)
    nodes = [
        replace(node, logprobs=own.tolist()) if node.demonstrated else node
        for node, own in zip(game.nodes, logprobs, strict=True)
    ]
    return replace(game, nodes=nodes)
