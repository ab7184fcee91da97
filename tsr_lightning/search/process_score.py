"""A process score that a run trains on its own outcomes: which prefixes led to a success."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from statistics import fmean
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tsr_lightning.errors import require
from tsr_lightning.search.by_epoch import ByEpoch
from tsr_lightning.search.scorers import Critic, Scorer
from tsr_lightning.search.tree import Node
from tsr_lightning.trajectory import Candidate, Group, Message, Origin, Trajectory

Weights = NDArray[np.float64]  # [buckets]
Places = NDArray[np.int64]  # [F] of a state's features among the weights, each once
Messages = tuple[Message, ...]  # what a state shows
Example = tuple[Messages, float]  # a state, and the share of what was played on from it that succeeded

_LINES = 24  # the last ones of a state that are read, which bounds the pairs


@dataclass(frozen=True, eq=False)
class ProcessScore(Scorer):
    """The probability that a prefix leads to a success, learned by logistic regression from the run's own rollouts: a
    small stand-in for the process reward model of PATR (https://arxiv.org/abs/2607.15610).

    A state is read as it is shown: the words of the last messages, their lines, and pairs of lines, hashed into
    buckets, each with a weight. After an epoch's rollout every state that the policy acted in (a demonstrator's say
    nothing of its chances) is an example, whose target is the share of the ends below it that succeeded: in a recorded
    tree of all of them, else of its trajectory. An example moves its own log-odds by `learning_rate` times its error,
    so that outcomes of long ago fade as the policy changes. A state that solves the task is worth 1 and one that ended
    it otherwise 0. It costs no tokens.

    Departs from the paper, whose score is a pretrained model of 7B parameters that reads the last ten turns and is not
    trained: this one knows nothing in the first epoch, and where a search has chosen what was played on it has seen the
    better half alone.

    Args:
        learning_rate: of an example, as a share of its error in log-odds.
        buckets: weights; features that share one are not told apart.
        passes: over the examples of a rollout.
    """

    learning_rate: float = 0.5
    buckets: int = 32768
    passes: int = 2

    def __post_init__(self) -> None:
        remedy = "give a number above 0 and up to 4, such as 0.5"
        require(0 < self.learning_rate <= 4, "ProcessScore.learning_rate", self.learning_rate, remedy)
        require(self.buckets >= 2, "ProcessScore.buckets", self.buckets, "give 2 or more, such as 32768")
        require(self.passes >= 1, "ProcessScore.passes", self.passes, "give 1 or more")

    def __call__(self, nodes: Sequence[Node], critic: Critic) -> list[float]:
        return [float(node.succeeded) if node.done else self.model.success(node.snapshot.messages) for node in nodes]

    @cached_property
    def model(self) -> "ProcessModel":
        return ProcessModel(self)

    @property
    def learners(self) -> "tuple[ProcessModel, ...]":
        return (self.model,)


class ProcessModel:
    """The weights of a process score, by the epochs that were rolled out.

    Args:
        spec: how it learns.
    """

    def __init__(self, spec: ProcessScore) -> None:
        self._spec = spec
        self.reset()

    def reset(self) -> None:
        """Knows nothing, as where a run begins."""
        self._weights = ByEpoch(np.zeros(self._spec.buckets))
        self._now = self._weights.before(0)

    def begin(self, epoch: int) -> None:
        """Scores as the rollouts before this epoch taught it, whichever were collected since."""
        self._now = self._weights.before(epoch)

    def learn(self, epoch: int, groups: Sequence[Group], trained: int) -> None:
        """Learns from an epoch's rollout, by a policy that had been `trained` for so many."""
        played = [t for group in groups for t in group.trajectories if t.origin is not Origin.DEMONSTRATED]
        every = [example for each in played for example in examples_of(each)]
        seen = [(places(messages, self._spec.buckets), target) for messages, target in every]
        weights = fitted(self._weights.before(epoch), seen * self._spec.passes, self._spec.learning_rate)
        self._weights.note(epoch, weights, trained)

    def success(self, messages: Messages) -> float:
        """The probability of a success from a state."""
        return _sigmoid(float(self._now[places(messages, self._spec.buckets)].sum()))

    def state_dict(self, epochs: int) -> dict[str, Any]:
        """The weights as these epochs left them, as plain types: those that are not 0."""
        weights = self._weights.before(epochs)
        known = np.flatnonzero(weights)
        return {"buckets": len(weights), "places": known.tolist(), "weights": weights[known].tolist()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        remedy = f"the checkpoint's run had {state_dict['buckets']}: resume with as many"
        require(self._spec.buckets == state_dict["buckets"], "ProcessScore.buckets", self._spec.buckets, remedy)
        weights = np.zeros(self._spec.buckets)
        weights[state_dict["places"]] = state_dict["weights"]
        self._weights = ByEpoch(weights)


def places(messages: Messages, buckets: int) -> Places:
    """The buckets of what a state shows: its words, its last lines, pairs of these, and one that all states share."""
    shown = "\n".join(message.content for message in messages if message.role != "system")
    lines = [line for line in shown.splitlines() if line.strip()][-_LINES:]
    features = ["", *(f"w {word}" for word in shown.split()), *(f"l {line}" for line in lines)]
    features += [f"p {one}\n{other}" for one, other in combinations(lines, 2)]
    return np.unique([crc32(feature.encode()) % buckets for feature in features])


def fitted(weights: Weights, examples: Iterable[tuple[Places, float]], learning_rate: float) -> Weights:
    """The weights after logistic regression, one example after the other. Each moves its own log-odds by learning_rate
    times its error: the gradient of the cross-entropy, over the number of its features."""
    weights = weights.copy()
    for own, target in examples:
        error = target - _sigmoid(float(weights[own].sum()))
        weights[own] += learning_rate * error / len(own)
    return weights


def examples_of(trajectory: Trajectory) -> Iterator[Example]:
    """The states that the policy acted in. Of several ends below a state the target is the mean."""
    if not trajectory.tree:
        yield from ((turn.messages, float(trajectory.succeeded)) for turn in trajectory.turns)
        return
    shown: dict[int | None, Messages] = {}  # by the candidate that led to a state
    ends: dict[int | None, list[bool]] = {}
    for each in trajectory.tree:
        shown[each.parent] = each.turn.messages
        for state in _states_above(trajectory.tree, each) if each.done else ():
            ends.setdefault(state, []).append(each.succeeded)
    yield from ((shown[state], fmean(own)) for state, own in ends.items())


def _states_above(tree: Sequence[Candidate], end: Candidate) -> Iterator[int | None]:
    """Each by the candidate that led to it, the root, which none led to, last."""
    yield end.parent
    if end.parent is not None:
        yield from _states_above(tree, tree[end.parent])


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else 1 - 1 / (1 + math.exp(logit))
