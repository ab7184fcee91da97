"""Episodes as an Inspect log, whose branches are what a search discarded: Inspect View, Scout and Docent open it."""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from inspect_ai.event import AnchorEvent, BranchEvent, Event, ModelEvent, SpanBeginEvent, SpanEndEvent
from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalLog,
    EvalMetric,
    EvalResults,
    EvalSample,
    EvalScore,
    EvalSpec,
    write_eval_log,
)
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    ModelOutput,
)
from inspect_ai.scorer import Score

from tsr_lightning.episodes.convert import before
from tsr_lightning.episodes.schema import KEPT, Episode, Header, Node, Said

_MESSAGES = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)  # events are a second apart, so that viewers keep their order


def write_inspect(path: Path, header: Header, episodes: Sequence[Episode]) -> None:
    """Writes a log with one sample per episode. A branch is named by the fate, score and value of its first response;
    every response has them in its event's metadata, with its node's number."""
    model = str(header.policy["model"])
    samples = [_sample(number, episode, model) for number, episode in enumerate(episodes, start=1)]
    rate = sum(episode.succeeded for episode in episodes) / max(1, len(episodes))
    accuracy = {"mean": EvalMetric(name="mean", value=rate)}
    log = EvalLog(
        status="success",
        eval=EvalSpec(
            created=_BEGINNING.isoformat(),
            task=f"{header.envs[0]['name']} {header.phase} epoch {header.epoch}",
            task_args={"envs": header.envs},
            dataset=EvalDataset(name=header.envs[0]["name"], samples=len(samples)),
            model=model,
            model_generate_config=GenerateConfig(temperature=header.temperature),
            config=EvalConfig(),
            metadata={"policy": header.policy, "context": header.context, "limits": header.limits},
        ),
        results=EvalResults(
            total_samples=len(samples),
            completed_samples=len(samples),
            scores=[EvalScore(name="success", scorer="success", metrics=accuracy)],
        ),
        samples=samples,
    )
    write_eval_log(log, str(path), format="eval")


def _sample(number: int, episode: Episode, model: str) -> EvalSample:
    messages = _messages(episode.observation)
    for node in episode.path:
        messages += [ChatMessageAssistant(content=node.text, model=model), *_messages(node.observation)]
    events = list(_events(episode, model))
    for place, event in enumerate(events):
        event.timestamp = _BEGINNING + timedelta(seconds=place)
    return EvalSample(
        id=number,
        epoch=1,
        input=_messages(episode.observation),
        target="",
        messages=messages,
        output=_output(episode.path[-1], model) if episode.path else ModelOutput(),
        scores={"success": Score(value=int(episode.succeeded)), "return": Score(value=episode.episode_return)},
        metadata={
            **{"instance": str(episode.instance), "member": episode.member, "env": episode.env},
            **{"strategy": episode.strategy, "origin": episode.origin, "ended": episode.ended},
        },
        events=events,
    )


def _events(episode: Episode, model: str) -> Iterator[Event]:
    """The trajectory in a span of its own, and each branch in a span below the one that it leaves."""
    below: dict[int | None, list[Node]] = {}
    for node in episode.nodes:
        below.setdefault(node.parent, []).append(node)

    def lane(first: Node, span: str) -> Iterator[Event]:
        """Responses one after the other, each followed by those that branch off beside the next one."""
        node: Node | None = first
        while node is not None:
            yield _response(episode, node, model, span)
            yield AnchorEvent(anchor_id=_anchor(node.id), span_id=span, working_start=0.0)
            children = below.get(node.id, [])
            following = next((child for child in children if child.fate == KEPT), children[0] if children else None)
            yield from branches(node.id, [child for child in children if child is not following], span)
            node = following

    def branches(parent: int | None, nodes: Sequence[Node], span: str) -> Iterator[Event]:
        for node in nodes:
            own = f"branch-{node.id}"
            yield SpanBeginEvent(
                id=own, span_id=own, parent_id=span, type="branch", name=_name(node), working_start=0.0
            )
            yield BranchEvent(from_anchor=_anchor(parent), span_id=own, working_start=0.0)
            yield from lane(node, own)
            yield SpanEndEvent(id=own, span_id=own, working_start=0.0)

    span, roots = "episode", below.get(None, [])
    yield SpanBeginEvent(id=span, span_id=span, type="agent", name=episode.strategy, working_start=0.0)
    yield AnchorEvent(anchor_id=_anchor(None), span_id=span, working_start=0.0)
    yield from branches(None, [node for node in roots if node.fate != KEPT], span)
    for node in roots:
        if node.fate == KEPT:
            yield from lane(node, span)
    yield SpanEndEvent(id=span, span_id=span, working_start=0.0)


def _response(episode: Episode, node: Node, model: str, span: str) -> ModelEvent:
    figures = ("score", "env_score", "value", "advantage", "reward", "valid", "effective", "fate", "why", "ended")
    metadata: dict[str, Any] = {name: getattr(node, name) for name in figures}
    return ModelEvent(
        model=model,
        input=_messages(before(episode, node)),
        tools=[],
        tool_choice="none",
        config=GenerateConfig(),
        output=_output(node, model),
        span_id=span,
        working_start=0.0,
        metadata={"node": node.id, "parent": node.parent, "turn": node.turn, **metadata, "logprob": _logprob(node)},
    )


def _name(node: Node) -> str:
    figures = [("score", node.score), ("value", node.value)]
    said = [f"{name} {figure:.4g}" for name, figure in figures if figure is not None]
    return ", ".join([f"node {node.id}: {node.fate}", *said])


def _anchor(node: int | None) -> str:
    return "start" if node is None else f"node-{node}"


def _logprob(node: Node) -> float:
    return math.fsum(node.logprobs)


def _output(node: Node, model: str) -> ModelOutput:
    return ModelOutput.from_content(model, node.text, "stop" if node.finished else "max_tokens")


def _messages(said: Sequence[Said]) -> list[ChatMessage]:
    return [_MESSAGES.get(each.role, ChatMessageTool)(content=each.content) for each in said]
