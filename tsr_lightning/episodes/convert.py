"""Recorded trajectories as episodes, and back."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from tsr_lightning.episodes.fates import fates
from tsr_lightning.episodes.schema import Episode, Node, Said
from tsr_lightning.trajectory import Candidate, Ended, Message, Origin, Trajectory, Turn


class TurnCredit(NamedTuple):
    """What training made of a turn."""

    value: float | None  # the critic's, of the state before it
    advantage: float | None  # the mean over its tokens; None where it was not trained on, as in the next
    weight: float | None


NO_CREDIT: Mapping[int, TurnCredit] = {}


def to_episode(trajectory: Trajectory, credit: Mapping[int, TurnCredit] = NO_CREDIT) -> Episode:
    """A recorded trajectory as an episode.

    Args:
        trajectory: with its `record`.
        credit: of turns, by their identity.
    """
    record = trajectory.record
    contexts: list[tuple[int, ...]] = []
    depths: list[int] = []
    returns: list[float] = []
    kept = set(map(id, trajectory.turns))
    path = {i for i, each in enumerate(record) if id(each.candidate.turn) in kept}
    for each in record:
        turn, parent = each.candidate.turn, each.candidate.parent
        contexts.append(turn.prompt + turn.response)
        depths.append(1 if parent is None else depths[parent] + 1)
        returns.append(turn.reward + (0.0 if parent is None else returns[parent]))
    nodes: list[Node] = []
    for i, (each, (fate, why)) in enumerate(zip(record, fates(record, path, returns), strict=True)):
        candidate, turn = each.candidate, each.candidate.turn
        shared = _shared(() if candidate.parent is None else contexts[candidate.parent], turn.prompt)
        own = credit.get(id(turn))
        nodes.append(
            Node(
                id=i,
                parent=candidate.parent,
                turn=depths[i],
                round=each.round,
                shared=shared,
                prompt=list(turn.prompt[shared:]),
                response=list(turn.response),
                logprobs=list(turn.behaviour_logprobs),
                finished=turn.finished,
                text=turn.text,
                observation=_said(each.messages),
                reward=turn.reward,
                valid=turn.valid,
                effective=turn.effective,
                action=turn.action if turn.action != turn.text else None,
                remaining=int(candidate.remaining),
                state=candidate.state_key,
                ended=_value(candidate.ended),
                env_score=candidate.env_score,
                score=candidate.score,
                value=own.value if own else None,
                advantage=own.advantage if own else None,
                weight=own.weight if own else None,
                noise=each.noise,
                drawn=candidate.drawn,
                demonstrated=each.demonstrated,
                fate=fate,
                why=why,
            )
        )
    last = max(path, default=None)
    final = _shared(() if last is None else contexts[last], trajectory.final_prompt)
    return Episode(
        instance=trajectory.instance,
        member=trajectory.member,
        env=trajectory.env,
        strategy=trajectory.strategy,
        origin=trajectory.origin.value,
        ended=_value(trajectory.ended),
        episode_return=trajectory.episode_return,
        policy_epochs=trajectory.policy_epochs,
        tree=bool(trajectory.tree) or _branches(record_parents(trajectory)),
        observation=_said(trajectory.turns[0].messages),
        state=trajectory.state_keys[0] if trajectory.state_keys else "",
        nodes=nodes,
        final_shared=final,
        final_prompt=list(trajectory.final_prompt[final:]),
    )


def record_parents(trajectory: Trajectory) -> list[int | None]:
    """The parents of all turns that were sampled."""
    return [each.candidate.parent for each in trajectory.record if each.candidate.drawn and not each.lost]


def prompts(episode: Episode) -> list[tuple[int, ...]]:
    """The whole prompt of every node."""
    contexts: list[tuple[int, ...]] = []
    found: list[tuple[int, ...]] = []
    for node in episode.nodes:
        before = () if node.parent is None else contexts[node.parent]
        found.append((*before[: node.shared], *node.prompt))
        contexts.append((*found[-1], *node.response))
    return found


def final_prompt(episode: Episode, of_nodes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The context after the episode; `of_nodes` are its `prompts`."""
    last = episode.path[-1]
    context = (*of_nodes[last.id], *last.response)
    return (*context[: episode.final_shared], *episode.final_prompt)


def to_trajectory(episode: Episode, *, tree: bool = False, state_keys: bool = False) -> Trajectory:
    """The trajectory that was saved, without its record.

    Args:
        episode: with a path.
        tree: with `Trajectory.tree`, where its search branched.
        state_keys: with `Trajectory.state_keys`.
    """
    of_nodes = prompts(episode)
    turns = [_turn(episode, node, of_nodes[node.id]) for node in episode.nodes]
    path = episode.path
    return Trajectory(
        instance=episode.instance,
        member=episode.member,
        strategy=episode.strategy,
        origin=Origin(episode.origin),
        turns=tuple(turns[node.id] for node in path),
        ended=_ended(episode.ended),
        final_prompt=final_prompt(episode, of_nodes),
        final_messages=messages_of(path[-1].observation),
        tree=_tree(episode, turns) if tree and episode.tree else (),
        env=episode.env,
        state_keys=(episode.state, *(node.state for node in path[:-1])) if state_keys else (),
        policy_epochs=episode.policy_epochs,
    )


def messages_of(said: Sequence[Said]) -> tuple[Message, ...]:
    """Messages as the environment gave them."""
    return tuple(Message(each.role, each.content) for each in said)


def before(episode: Episode, node: Node) -> list[Said]:
    """The messages that a node's response answers."""
    return episode.observation if node.parent is None else episode.nodes[node.parent].observation


def _turn(episode: Episode, node: Node, prompt: tuple[int, ...]) -> Turn:
    return Turn(
        prompt=prompt,
        response=tuple(node.response),
        behaviour_logprobs=tuple(node.logprobs),
        finished=node.finished,
        messages=messages_of(before(episode, node)),
        text=node.text,
        reward=node.reward,
        valid=node.valid,
        effective=node.effective,
        action=node.text if node.action is None else node.action,
    )


def _tree(episode: Episode, turns: Sequence[Turn]) -> tuple[Candidate, ...]:
    """`Trajectory.tree`: depth by depth, each state's candidates in the order in which they were proposed."""
    children: dict[int | None, list[Node]] = {}
    for node in episode.nodes:
        if not node.demonstrated and node.fate != "lost":
            children.setdefault(node.parent, []).append(node)
    places: dict[int | None, int | None] = {None: None}
    found: list[Candidate] = []
    level: list[int | None] = [None]
    while level:
        below = [child for state in level for child in children.get(state, ())]
        for node in below:
            places[node.id] = len(found)
            found.append(
                Candidate(
                    turn=turns[node.id],
                    parent=places[node.parent],
                    state_key=node.state,
                    remaining=node.remaining,
                    env_score=node.env_score,
                    score=node.score,
                    ended=_ended(node.ended),
                    drawn=node.drawn,
                )
            )
        level = [node.id for node in below]
    return tuple(found)


def _shared(before: Sequence[int], prompt: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, prompt, strict=False)))


def _branches(parents: Sequence[int | None]) -> bool:
    return len(set(parents)) < len(parents)


def _said(messages: Sequence[Message]) -> list[Said]:
    return [Said(message.role, message.content) for message in messages]


def _value(ended: Ended | None) -> str | None:
    return None if ended is None else ended.value


def _ended(value: str | None) -> Ended | None:
    return None if value is None else Ended(value)
