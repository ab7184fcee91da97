"""Plays saved episodes again, without a model, and names the first difference."""

from collections.abc import Iterator
from typing import Any

from tsr_lightning.engines.base import Response
from tsr_lightning.envs.retried import FAULTS, describe
from tsr_lightning.episodes.convert import final_prompt, messages_of, prompts
from tsr_lightning.episodes.schema import LOST, Episode, Node
from tsr_lightning.errors import ConfigError, RunError
from tsr_lightning.rng import Key
from tsr_lightning.rollout.saved import SavedTask
from tsr_lightning.search import tree
from tsr_lightning.search.record import state_key
from tsr_lightning.trajectory import Turn


def first_difference(task: SavedTask, episode: Episode) -> str:
    """The first thing that comes out otherwise than it was saved; empty where nothing does.

    Every candidate is played, in the state of its parent and with its own noise: its prompt's ids and its text by the
    chat format, and all that the environment reports.
    """
    try:
        return next(_differences(task, episode), "")
    except (ConfigError, RunError) as error:
        return f"it cannot be played: {error}"
    except FAULTS as error:
        return f"it cannot be played: {describe(error)}"


def _differences(task: SavedTask, episode: Episode) -> Iterator[str]:
    simulator = task.simulator
    if episode.env >= len(simulator.envs):
        yield f"env: saved {episode.env}, and the file has {len(simulator.envs)} environments"
    scored = any(node.env_score is not None for node in episode.nodes)
    root = simulator.root(episode.instance, Key(0), episode.env, scored)
    yield from _unequal("the first observation", messages_of(episode.observation), root.snapshot.messages)
    yield from _unequal("the first state", episode.state, state_key(root))
    played: dict[int | None, tree.Node] = {None: root}
    of_nodes = prompts(episode)
    for node in episode.nodes:
        parent = played[node.parent]
        yield from _unequal(f"{_place(node)}: prompt", of_nodes[node.id], simulator.prompt(parent))
        response = Response(tuple(node.response), tuple(node.logprobs), node.finished)
        if node.fate == LOST:
            continue
        child = played[node.id] = simulator.replay(parent, response, Key(node.noise), node.env_score is not None)
        assert child.turn is not None
        yield from _of_turn(node, child.turn)
        yield from _of_state(node, child)
    if episode.path:
        leaf = played[episode.path[-1].id]
        yield from _unequal("the last prompt", final_prompt(episode, of_nodes), simulator.final_prompt(leaf))
        yield from _unequal("the return", episode.episode_return, leaf.episode_return)


def _of_turn(node: Node, turn: Turn) -> Iterator[str]:
    saved = (node.text, node.reward, node.valid, node.effective)
    came = (turn.text, turn.reward, turn.valid, turn.effective)
    for name, *pair in zip(("text", "reward", "valid", "effective"), saved, came, strict=True):
        yield from _unequal(f"{_place(node)}: {name}", *pair)


def _of_state(node: Node, child: tree.Node) -> Iterator[str]:
    after = child.snapshot
    saved = (messages_of(node.observation), node.state, node.remaining, node.ended, node.env_score)
    came = (after.messages, state_key(child), after.remaining, after.ended and after.ended.value, after.env_score)
    for name, *pair in zip(("observation", "state", "remaining", "ended", "env_score"), saved, came, strict=True):
        yield from _unequal(f"{_place(node)}: {name}", *pair)


def _unequal(name: str, saved: Any, came: Any) -> Iterator[str]:
    if saved != came:
        yield f"{name}: saved {_excerpt(saved, came)}, and now {_excerpt(came, saved)}"


def _excerpt(one: Any, other: Any) -> str:
    """A value, or of a long one the part where the two begin to differ."""
    own, theirs = (str(each) if isinstance(each, tuple) else repr(each) for each in (one, other))
    if len(own) <= 80:
        return own
    start = next((i for i, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), min(len(own), len(theirs)))
    return f"...{own[max(0, start - 30) : start + 40]}..."


def _place(node: Node) -> str:
    return f"turn {node.turn}" if node.fate == "kept" else f"turn {node.turn}, node {node.id} ({node.fate})"
