"""The schema of episodes: a header, then one episode a line, each with one node per turn of its search.

docs/episodes.md has the fields as they stand here. A change of their meaning is another `VERSION`.
"""

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

SCHEMA, VERSION = "tsr-episodes", 2
READABLE = (1, VERSION)  # 1 has no `Node.action`
ROLLOUT = "rollout"  # the phase of what is trained on; an evaluation's is its protocol's name
KEPT, PRUNED, DUPLICATE, PLAYED_OUT, LOST = "kept", "pruned", "duplicate", "played out", "lost"
FATES = (KEPT, PRUNED, DUPLICATE, PLAYED_OUT, LOST)

RecordT = TypeVar("RecordT", "Header", "Episode")


class SchemaError(ValueError):
    """A line that is not as the schema says; the message says where."""


@dataclass(frozen=True, slots=True)
class Header:
    """What all episodes of a file have in common."""

    schema: str  # "tsr-episodes"
    version: int  # 2
    phase: str  # "rollout" of what is trained on; else the evaluation's protocol, ".validate" behind it outside of fit
    epoch: int  # epochs that the run had trained for
    envs: list[dict[str, Any]]  # the mixture by index: env, env_kwargs, name
    policy: dict[str, Any]  # model, adapter, response_prefix, template_arguments, ... (PolicySpec)
    context: dict[str, Any]  # class_path and init_args: what of the episode a prompt shows
    limits: dict[str, int | None]  # context, episode, model, response: tokens
    temperature: float  # that responses were sampled at


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the environment."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Node:
    """A response in a state, and what came of it. Those of fate "kept" are the episode."""

    id: int  # its place in `nodes`
    parent: int | None  # the node in whose state it was proposed; null: the first state
    turn: int  # counted from 1
    round: int  # the request of its search that it answers, from 0
    shared: int  # ids of the prompt that are those of the parent's prompt and response, from their beginning
    prompt: list[int]  # the prompt's other ids
    response: list[int]  # [R] sampled ids
    logprobs: list[float]  # [R] with which they were sampled; 0 of an oracle's, and of a person's the policy's own
    finished: bool  # false: cut by a token limit
    text: str  # the response as the environment received it
    observation: list[Said]  # after it
    reward: float
    valid: bool  # the text could be read as actions
    effective: bool  # the task's state changed
    remaining: int  # the environment's own budget after it
    state: str  # fingerprint of the state after it: equal where states are
    ended: str | None  # succeeded, failed, turn limit, token limit; null: the episode goes on
    env_score: float | None  # the environment's score of the state after it
    score: float | None  # the search's
    value: float | None  # the critic's, of the state before it
    advantage: float | None  # mean over its tokens; null: no credit was given
    weight: float | None  # in the policy loss, summed over its tokens, before these are normalised
    noise: int  # names the environment's draws
    drawn: bool  # false: another node's response, played in the real episode
    demonstrated: bool  # by the environment's oracle or a person
    fate: str  # kept, pruned, duplicate, played out, lost
    why: str  # the fate in words
    action: str | None = None  # as the environment read the text; null: the text itself


@dataclass(frozen=True, slots=True)
class Episode:
    """One line: an instance, its search, and the trajectory that it chose."""

    instance: int  # the seed of the first state
    member: int  # of the instance's group
    env: int  # index in the header's `envs`
    strategy: str
    origin: str  # sampled, searched, demonstrated, greedy
    ended: str | None
    episode_return: float
    policy_epochs: int | None  # that the policy of its responses had been trained for
    tree: bool  # its search proposed several responses in a state
    observation: list[Said]  # the first, with the instructions
    state: str  # fingerprint of the first state
    nodes: list[Node]  # parents first
    final_shared: int  # of the context after a budget ended it, as `shared` of a node; 0 where the task ended it
    final_prompt: list[int]  # the other ids

    @property
    def path(self) -> list[Node]:
        """The nodes of the trajectory, in its order."""
        return [node for node in self.nodes if node.fate == KEPT]

    @property
    def succeeded(self) -> bool:
        return self.ended == "succeeded"


def parsed(kind: type[RecordT], value: Any) -> RecordT:
    """A record of plain JSON.

    Raises:
        SchemaError: it is not as the schema says.
    """
    found: RecordT = _read(value, kind, kind.__name__.lower())
    return found


# What readers take from the mappings of a header. A policy has further keys, and its model is a name or sizes.
_ENV = {"env": str, "env_kwargs": dict[str, Any], "name": str}
_POLICY = {"response_prefix": str, "template_arguments": dict[str, Any]}
_CONTEXT = {"class_path": str, "init_args": dict[str, Any]}
_LIMITS = dict.fromkeys(("context", "episode", "model", "response"), int | None)


def check_header(header: Header) -> None:
    """Raises a SchemaError where a mapping lacks a key, or it names no environment."""
    if not header.envs:
        raise SchemaError("header.envs is []")
    for place, env in enumerate(header.envs):
        _check_keys(env, _ENV, f"header.envs[{place}]")
    _check_keys(header.policy, _POLICY, "header.policy")
    model = header.policy.get("model")
    if not isinstance(model, str | dict):
        raise SchemaError(f"header.policy.model is {_short(model)}")
    _check_keys(header.context, _CONTEXT, "header.context")
    _check_keys(header.limits, _LIMITS, "header.limits")


def _check_keys(given: Mapping[str, Any], hints: Mapping[str, Any], place: str) -> None:
    for name, hint in hints.items():
        if name not in given:
            raise SchemaError(f"{place} lacks {name}")
        _read(given[name], hint, f"{place}.{name}")


def check_tree(episode: Episode) -> None:
    """Raises a SchemaError where nodes are not numbered, do not follow their parents, or hold no episode."""
    for place, node in enumerate(episode.nodes):
        if node.id != place or not (node.parent is None or 0 <= node.parent < place):
            raise SchemaError(f"nodes[{place}] has the id {node.id} and the parent {node.parent}")
        if node.fate not in FATES:
            raise SchemaError(f"nodes[{place}].fate is {node.fate!r}")
    if not episode.path:
        raise SchemaError(f"none of {len(episode.nodes)} nodes has the fate {KEPT!r}")


def _read(value: Any, hint: Any, place: str) -> Any:
    """A value that has a type; lists and records are read item by item."""
    if is_dataclass(hint):
        return _record(value, hint, place)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _read(value, arguments[0], place)
    if origin is list and isinstance(value, list):
        kind = arguments[0]
        if kind in (int, float, str):
            if all(_fits(one, kind) for one in value):
                return value
        else:
            return [_read(one, kind, f"{place}[{i}]") for i, one in enumerate(value)]
    elif (origin is dict and isinstance(value, dict)) or (isinstance(hint, type) and _fits(value, hint)):
        return value
    raise SchemaError(f"{place} is {_short(value)}")


def _fits(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    return type(value) is kind


def _record(value: Any, kind: Any, place: str) -> Any:
    hints = _hints(kind)
    given = set(value) if isinstance(value, Mapping) else set()
    if odd := sorted(map(str, hints.keys() - _optional(kind) - given | given - hints.keys())):
        raise SchemaError(f"{place} has other fields: {', '.join(odd[:4])}")
    return kind(**{name: _read(value[name], hint, f"{place}.{name}") for name, hint in hints.items() if name in given})


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


@cache
def _optional(kind: type) -> frozenset[str]:
    """The fields that files of an earlier version lack."""
    return frozenset(each.name for each in fields(kind) if each.default is not MISSING)


def plain(record: Any) -> Any:
    """A record as what JSON can hold."""
    if is_dataclass(record):
        kind: type = type(record)
        return {name: plain(getattr(record, name)) for name in _hints(kind)}
    if isinstance(record, Sequence) and not isinstance(record, str) and record and is_dataclass(record[0]):
        return [plain(one) for one in record]
    return record


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
