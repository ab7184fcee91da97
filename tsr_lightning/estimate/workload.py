"""Tokens of an epoch: generated, computed for prompts, and trained on. Pure functions of counts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tsr_lightning.estimate.prompt_lengths import EpisodeTokens
from tsr_lightning.estimate.searches import search_size
from tsr_lightning.policy.chat import Context
from tsr_lightning.search.plan import PlanEntry


class SequenceTokens(NamedTuple):
    """Tokens of a training sequence."""

    length: int
    outputs: int  # whose logits the update computes


@dataclass(frozen=True)
class Episode:
    """An episode as the policy sees it.

    Args:
        tokens: of its messages.
        context: the past turns that a prompt shows.
        response: tokens of a response.
    """

    tokens: EpisodeTokens
    context: Context
    response: int

    @property
    def turns(self) -> int:
        return self.tokens.turns

    def prompt(self, depth: int) -> int:
        """Tokens of the prompt after `depth` turns: the system message, the visible turns with their responses, and
        the present messages."""
        return round(self.tokens.system + sum(self._shown(depth)) + self.tokens.messages[depth])

    def _shown(self, depth: int) -> list[float]:
        visible = self.context.visible_turns(depth)
        return [messages + self.response for messages in self.tokens.messages[depth - visible : depth]]

    def extends(self, depth: int) -> bool:
        """True if the prompt after `depth` turns continues the previous turn's prompt and response."""
        return depth > 0 and self.context.visible_turns(depth) == depth

    def new(self, depth: int) -> int:
        """Tokens of that prompt which no earlier prompt of the episode had: the messages and the last sampled token,
        which no decoding step computed; or all but the system message where the context was cut."""
        if depth == 0:
            return self.prompt(0)
        return (
            round(self.tokens.messages[depth]) + 1 if self.extends(depth) else self.prompt(depth) - self.tokens.system
        )

    def sequences(self, turns: int, *, observes: bool = False) -> list[SequenceTokens]:
        """Its training sequences: consecutive turns are one while each prompt extends the last.

        Args:
            turns: that are trained.
            observes: observations are trained too, each behind the response that it answers. The one after the last
                turn counts as long as the one before it.
        """
        found: list[SequenceTokens] = []
        begins = 0  # tokens of the prompt that the sequence begins with
        for depth in range(turns):
            prompt = self.prompt(depth)
            answered = round(self.tokens.messages[min(depth + 1, self.turns - 1)]) if observes else 0
            length, sampled = prompt + self.response + answered, self.response
            if self.extends(depth):
                sampled += found.pop().outputs
            else:
                begins = prompt
            found.append(SequenceTokens(length, length - begins if observes else sampled))
        return found

    def within(self, context_tokens: int, episode_tokens: int | None) -> "Episode":
        """Returns the episode up to the turn whose prompt or response has no room."""
        room = self.turns if episode_tokens is None else max(1, episode_tokens // self.response)
        fitting = [depth for depth in range(self.turns) if self.prompt(depth) + self.response <= context_tokens]
        turns = next((depth for depth in range(self.turns) if depth not in fitting), self.turns)
        return Episode(self.tokens.first(max(1, min(turns, room))), self.context, self.response)


@dataclass(frozen=True)
class Wave:
    """Responses that are generated at once, of all searches that run side by side."""

    prompts: int  # distinct
    new_prompts: int  # of these, not computed before
    responses: int
    prompt_tokens: int  # of each prompt
    new_tokens: int  # of each new prompt, where prefixes are shared

    @property
    def ends(self) -> int:
        """Ends of prompts and responses, after which the engine keeps the states of recurrent layers."""
        return self.prompts + self.responses

    def held(self, response: int) -> int:
        """Tokens whose keys the cache has to hold for the next wave to find its prefixes: every prompt and every
        response, as it is not known before which of them search goes on with."""
        return self.prompts * self.prompt_tokens + self.responses * response


@dataclass(frozen=True)
class RolloutTokens:
    """A rollout of an epoch or an evaluation."""

    waves: tuple[Wave, ...]
    response: int  # tokens

    @property
    def responses(self) -> int:
        return sum(wave.responses for wave in self.waves)

    @property
    def generated(self) -> int:
        """Responses · R."""
        return self.responses * self.response

    @property
    def decoded(self) -> int:
        """Responses · (R - 1): the last sampled token of a response is not computed."""
        return self.responses * (self.response - 1)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of every response's whole prompt, which are computed if no prefix is shared."""
        return sum(wave.responses * wave.prompt_tokens for wave in self.waves)

    @property
    def prefilled(self) -> int:
        """Prompt tokens that the prefix cache leaves to compute."""
        return sum(wave.new_prompts * wave.new_tokens for wave in self.waves)


def rollout_tokens(entries: Sequence[PlanEntry], instances: int, episode: Episode) -> RolloutTokens:
    """Groups of these entries on so many instances. Members of a group share their first prompt.

    The k-th requests of all searches are one wave, as in `search.driver`, cut by depth.
    """
    sizes = [(search_size(entry.strategy, episode.turns), entry.count) for entry in entries if entry.count]
    waves: list[Wave] = []
    for number in range(max((len(size.requests) for size, _ in sizes), default=0)):
        levels = [
            (level, count) for size, count in sizes if number < len(size.requests) for level in size.requests[number]
        ]
        for depth in sorted({level.depth for level, _ in levels}):
            of_depth = [(level, count) for level, count in levels if level.depth == depth]
            prompts = 1 if depth == 0 else sum(level.nodes * count for level, count in of_depth)
            new = sum(level.new_nodes * count for level, count in of_depth)
            waves.append(
                Wave(
                    prompts=instances * prompts,
                    new_prompts=instances * (min(1, new) if depth == 0 else new),
                    responses=instances * sum(level.responses * count for level, count in of_depth),
                    prompt_tokens=episode.prompt(depth),
                    new_tokens=episode.new(depth),
                )
            )
    return RolloutTokens(tuple(waves), episode.response)


@dataclass(frozen=True)
class TrainedTokens:
    """Counts of an epoch's updates."""

    packed: int  # tokens, where prefixes that the sequences of a group share count once
    unshared: int  # tokens of all sequences
    outputs: int  # sampled tokens, and those of observations where they are trained
    scores: float  # products of a query and a key: half the square of each sequence
    longest: int  # of a sequence
    sequences: int = 0


def trained_tokens(
    entries: Sequence[PlanEntry],
    groups: int,
    episode: Episode,
    *,
    trains_trees: bool = False,
    observes: bool = False,
) -> TrainedTokens:
    """Counts what is trained on of so many groups: one trajectory per member, or, under tree credit, every response of
    the searches' trees; with observations, if they are trained.

    A group's sequences share the first prompt; those whose context was cut share the system message alone.
    """
    packed = unshared = outputs = longest = sequences = 0
    scores = 0.0
    first, system = episode.prompt(0), episode.tokens.system
    for entry in entries:
        size = search_size(entry.strategy, episode.turns)
        if trains_trees and size.responses:
            levels = [level for request in size.requests for level in request]
            lengths = [
                episode.prompt(level.depth) + episode.response for level in levels for _ in range(level.responses)
            ]
            own = sum(level.new_nodes * episode.new(level.depth) * (level.depth > 0) for level in levels)
            packed += entry.count * (own + size.responses * episode.response)
            outputs += entry.count * size.responses * episode.response
        else:
            own_sequences = episode.sequences(episode.turns, observes=observes)
            lengths = [sequence.length for sequence in own_sequences]
            packed += entry.count * (sum(lengths) - first - sum(system for _ in lengths[1:]))
            outputs += entry.count * sum(sequence.outputs for sequence in own_sequences)
        unshared += entry.count * sum(lengths)
        scores += entry.count * sum(length**2 / 2 for length in lengths)
        longest = max([longest, *lengths])
        sequences += entry.count * len(lengths)
    return TrainedTokens(
        packed=groups * (packed + (first if packed else 0)),
        unshared=groups * unshared,
        outputs=groups * outputs,
        scores=groups * scores,
        longest=longest,
        sequences=groups * sequences,
    )


KeptGroups = Callable[[int], int]  # of so many groups, how many callbacks leave to train on at most
