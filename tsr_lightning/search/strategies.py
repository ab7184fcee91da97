"""The strategies of TSR (arXiv 2602.11767), each a generator over `Expand` and `Commit`.

The paper's M is `candidates`, its B `width`, its D `depth`. Departures from the paper: a success ranks before all else,
whatever its score, among equal scores the higher return wins, of nodes in the same situation only one is kept, and a
search stops as soon as its best node has succeeded.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.search.demonstrators import Demonstrator, Oracle, RandomPlayer
from tsr_lightning.search.scorers import EnvironmentScore, Scorer
from tsr_lightning.search.traits import Traits
from tsr_lightning.search.tree import (
    Commit,
    DataT,
    Demonstrate,
    Expand,
    Node,
    Search,
    best,
    distinct,
    ended,
    flat,
    live,
)
from tsr_lightning.trajectory import Origin

CommitMode = Literal["keep", "resample"]


class Strategy(ABC, Generic[DataT]):
    """Builds one trajectory from a root.

    Subclasses are frozen dataclasses; their fields are the arguments in YAML. A strategy that keeps data on its nodes,
    such as visit counts, derives from `Strategy[ItsData]` and sets `Node.data` itself.
    """

    @abstractmethod
    def __call__(self, root: Node[DataT]) -> Search[DataT]:
        """Yields requests, is sent their answers, and returns the leaf of the chosen trajectory."""

    @property
    def traits(self) -> Traits:
        """Facts by which its trajectories and trees are used; every strategy defines its own.

        Raises:
            ConfigError: it defines none.
        """
        raise ConfigError(
            f"{type(self).__name__} has no traits: define `traits = Traits(origin=..., branches=..., "
            "independent_siblings=..., monte_carlo_rollouts=...)` from tsr_lightning.search.traits"
        )


@dataclass(frozen=True)
class Sample(Strategy):
    """Plain trajectory sampling: the baseline."""

    traits = Traits(origin=Origin.SAMPLED, branches=False, independent_siblings=True, monte_carlo_rollouts=False)

    def __call__(self, root: Node) -> Search:
        node = root
        while not node.done:
            [[node]] = yield Expand([node], 1)
        return node


@dataclass(frozen=True)
class Greedy(Strategy):
    """The policy's likeliest response in every turn: no sample of it, but what its samples can be compared with."""

    traits = Traits(origin=Origin.GREEDY, branches=False, independent_siblings=True, monte_carlo_rollouts=False)

    def __call__(self, root: Node) -> Search:
        node = root
        while not node.done:
            [[node]] = yield Expand([node], 1, greedy=True)
        return node


@dataclass(frozen=True)
class BestOfN(Strategy):
    """The one of N whole trajectories with the highest return.

    Args:
        n: trajectories sampled.
        commit: keep: the best simulated trajectory is the result (the paper). resample: play its first turn in the
            real episode and plan again from the outcome.
    """

    n: int = 4
    commit: CommitMode = "keep"

    def __post_init__(self) -> None:
        require(self.n >= 1, "BestOfN.n", self.n, "give 1 or more")

    def __call__(self, root: Node) -> Search:
        return committed(self.plan, root, self.commit)

    def plan(self, root: Node) -> Search:
        [leaves] = yield Expand([root], self.n)
        while live(leaves):
            leaves = ended(leaves) + flat((yield Expand(live(leaves), 1)))
        return max(leaves, key=lambda leaf: (leaf.episode_return, leaf.tie))

    @property
    def traits(self) -> Traits:
        return Traits(
            origin=Origin.SAMPLED if self.n == 1 else Origin.SEARCHED,
            branches=self.n > 1,
            independent_siblings=True,
            monte_carlo_rollouts=False,
        )


@dataclass(frozen=True)
class Beam(Strategy):
    """Beam search over turns: M candidates per kept prefix; the B best of them all are kept.

    Args:
        width: prefixes kept per turn (B). Width 1 is best-of-M per turn.
        candidates: responses proposed per kept prefix and turn (M).
        scorer: scores the prefixes (S).
        commit: keep: the best simulated leaf is the result (the paper). resample: play its first turn in the real
            episode and search again from the outcome, so that lucky noise is not selected.
        without_replacement: the responses to a prefix all differ, which those of a policy that has become sure of
            itself hardly do otherwise (Kool et al. 2019, https://arxiv.org/abs/1903.06059). Of prefixes with equal
            scores and returns the one with the likelier last response is kept: by a draw, as of other candidates, rare
            responses would come as often as frequent ones.
    """

    width: int = 2
    candidates: int = 4
    scorer: Scorer = field(default_factory=EnvironmentScore)
    commit: CommitMode = "keep"
    without_replacement: bool = False

    def __post_init__(self) -> None:
        require(self.width >= 1, "Beam.width", self.width, "give 1 or more")
        require(self.candidates >= 1, "Beam.candidates", self.candidates, "give 1 or more")
        require(
            self.width <= self.candidates,
            "Beam.width",
            self.width,
            f"the first turn has only {self.candidates} prefixes (Beam.candidates); give at most as many",
        )

    def __call__(self, root: Node) -> Search:
        return committed(self.plan, root, self.commit)

    def plan(self, root: Node) -> Search:
        frontier = [root]
        while live(frontier) and not frontier[0].succeeded:
            children = flat((yield Expand(live(frontier), self.candidates, self.without_replacement)))
            if self.without_replacement:
                for child in children:
                    child.tie = child.logprob
            frontier = best(self.width, distinct(children + ended(frontier)))
        return frontier[0]

    @property
    def traits(self) -> Traits:
        branches = self.candidates > 1  # width <= candidates
        return Traits(
            origin=Origin.SEARCHED if branches else Origin.SAMPLED,
            branches=branches,
            independent_siblings=not self.without_replacement,
            monte_carlo_rollouts=False,
            scored_by=self.scorer,
            without_replacement=self.without_replacement,
        )


@dataclass(frozen=True)
class Lookahead(Strategy):
    """Shallow lookahead: roll each of M candidates D turns on, and commit the first turn of the best leaf.

    The paper does not say what its width does here; ours rolls B continuations of every candidate, each a plain sample.

    Args:
        candidates: responses proposed per turn (M).
        depth: turns that each candidate is rolled on before it is scored (D); 0 scores the candidates themselves.
        width: continuations per candidate (B).
        scorer: scores the leaves (S).
        commit: keep: the first turn as it was simulated (the paper). resample: play it in the real episode.
    """

    candidates: int = 4
    depth: int = 2
    width: int = 2
    scorer: Scorer = field(default_factory=EnvironmentScore)
    commit: CommitMode = "keep"

    def __post_init__(self) -> None:
        require(self.candidates >= 1, "Lookahead.candidates", self.candidates, "give 1 or more")
        require(self.width >= 1, "Lookahead.width", self.width, "give 1 or more")
        require(self.depth >= 0, "Lookahead.depth", self.depth, "give 0 or more")

    def __call__(self, root: Node) -> Search:
        node = root
        while not node.done:
            leaf = yield from self.plan(node)
            if self.commit == "resample":
                node = yield Commit(leaf.path[node.depth + 1])
            else:
                node = leaf if leaf.succeeded else leaf.path[node.depth + 1]
        return node

    def plan(self, node: Node) -> Search:
        leaves = distinct(flat((yield Expand([node], self.candidates))))
        for turn in range(self.depth):
            if not live(leaves) or best(1, leaves)[0].succeeded:
                break
            leaves = ended(leaves) + flat((yield Expand(live(leaves), self.width if turn == 0 else 1)))
        return best(1, leaves)[0]

    @property
    def traits(self) -> Traits:
        """Under `keep`, a single candidate that is rolled on is still selected: a success found on the way is the
        result, a failure is rolled again. So a state that was rolled on from gets further responses only where those
        failed. Several continuations of a single candidate are siblings, though it is not selected."""
        rolls_again = self.depth > 0 and self.commit == "keep"
        chooses = self.candidates > 1 or rolls_again
        return Traits(
            origin=Origin.SEARCHED if chooses else Origin.SAMPLED,
            branches=chooses or (self.depth > 0 and self.width > 1),
            independent_siblings=not rolls_again,
            monte_carlo_rollouts=False,
            scored_by=self.scorer,
        )


@dataclass(frozen=True)
class Expert(Strategy):
    """The environment's oracle, with noise: the source of demonstrations for a supervised warm start.

    Args:
        noise: probability that an action is a random legal one instead.
    """

    noise: float = 0.0
    traits = Traits(origin=Origin.DEMONSTRATED, branches=False, independent_siblings=True, monte_carlo_rollouts=False)

    def __post_init__(self) -> None:
        require(0 <= self.noise <= 1, "Expert.noise", self.noise, "give a probability between 0 and 1")

    @property
    def demonstrator(self) -> Oracle:
        return Oracle(self.noise)

    def __call__(self, root: Node) -> Search:
        return demonstrated(root, self.demonstrator)


@dataclass(frozen=True)
class RandomActions(Strategy):
    """Legal actions drawn at random, written in the environment's own form of an answer: demonstrations of that form
    alone, for a warm start where there is no oracle.
    """

    traits = Traits(origin=Origin.DEMONSTRATED, branches=False, independent_siblings=True, monte_carlo_rollouts=False)

    @property
    def demonstrator(self) -> RandomPlayer:
        return RandomPlayer()

    def __call__(self, root: Node) -> Search:
        return demonstrated(root, self.demonstrator)


def demonstrated(root: Node, demonstrator: Demonstrator) -> Search:
    """An episode that a demonstrator plays."""
    node = root
    while not node.done:
        node = yield Demonstrate(node, demonstrator)
    return node


def committed(plan: Callable[[Node], Search], root: Node, commit: CommitMode) -> Search:
    """The leaf that `plan` chose, or, under `resample`, the real episode, planned again after every turn."""
    if commit == "keep":
        return (yield from plan(root))
    node = root
    while not node.done:
        leaf = yield from plan(node)
        node = yield Commit(leaf.path[node.depth + 1])
    return node
