"""The strategies of TSR (arXiv 2602.11767), each a generator over `Expand` and `Commit` that reads like its box.

The paper's M is `candidates`, its B `width`, its D `depth`. Where we depart from it: among equal scores the higher
return wins, duplicates of a situation are pruned, and a search stops as soon as its best node is a success.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tsr_lightning.errors import ConfigError
from tsr_lightning.search.scorers import EnvironmentScore, Scorer
from tsr_lightning.search.tree import Commit, Demonstrate, Expand, Node, Search, best, distinct, ended, flat, live
from tsr_lightning.trajectory import Origin

CommitMode = Literal["keep", "resample"]


class Strategy(ABC):
    """Builds one trajectory from a root; frozen dataclasses derive from it, their fields are the arguments in YAML."""

    @abstractmethod
    def __call__(self, root: Node) -> Search:
        """Yields requests, is sent their answers, returns the leaf of the chosen trajectory."""

    @property
    def origin(self) -> Origin:
        """What its trajectories are. Settings that leave nothing to choose from make plain samples."""
        return Origin.SEARCHED

    @property
    def scored_by(self) -> Scorer | None:
        """What the driver scores children with; None where no score is looked at."""
        return None


@dataclass(frozen=True)
class Sample(Strategy):
    """Plain trajectory sampling: the baseline."""

    def __call__(self, root: Node) -> Search:
        node = root
        while not node.done:
            [[node]] = yield Expand([node], 1)
        return node

    @property
    def origin(self) -> Origin:
        return Origin.SAMPLED


@dataclass(frozen=True)
class BestOfN(Strategy):
    """N whole trajectories, the one with the highest return.

    Args:
        n: trajectories sampled.
        commit: keep: the chosen outcome becomes the trajectory (the paper). resample: plan N trajectories, play the
            first turn of the best in the real episode, plan again.
    """

    n: int = 4
    commit: CommitMode = "keep"

    def __post_init__(self) -> None:
        _at_least_one("n", self.n)

    def __call__(self, root: Node) -> Search:
        return _committed(self.plan, root, self.commit)

    def plan(self, root: Node) -> Search:
        [leaves] = yield Expand([root], self.n)
        while live(leaves):
            leaves = ended(leaves) + flat((yield Expand(live(leaves), 1)))
        return max(leaves, key=lambda leaf: (leaf.episode_return, leaf.tie))

    @property
    def origin(self) -> Origin:
        return Origin.SAMPLED if self.n == 1 else Origin.SEARCHED


@dataclass(frozen=True)
class Beam(Strategy):
    """Beam search over turns: M candidates per kept prefix, of all of them the B best are kept.

    Args:
        width: prefixes kept per turn (B). Width 1 is best-of-M per turn.
        candidates: responses proposed per kept prefix and turn (M).
        scorer: scores the prefixes (S).
        commit: keep: the chosen outcome becomes the trajectory (the paper). resample: play the first turn of the best
            leaf in the real episode and search again from what came of it, so that no luck is selected.
    """

    width: int = 2
    candidates: int = 4
    scorer: Scorer = field(default_factory=EnvironmentScore)
    commit: CommitMode = "keep"

    def __post_init__(self) -> None:
        _at_least_one("width", self.width)
        _at_least_one("candidates", self.candidates)
        if self.width > self.candidates:
            raise ConfigError(
                f"Beam.width is {self.width}, but only {self.candidates} prefixes (Beam.candidates) exist after the "
                f"first turn to be kept: set width to at most {self.candidates}, or raise candidates"
            )

    def __call__(self, root: Node) -> Search:
        return _committed(self.plan, root, self.commit)

    def plan(self, root: Node) -> Search:
        frontier = [root]
        while live(frontier) and not frontier[0].succeeded:
            children = yield Expand(live(frontier), self.candidates)
            frontier = best(self.width, distinct(flat(children) + ended(frontier)))
        return frontier[0]

    @property
    def origin(self) -> Origin:
        return Origin.SAMPLED if self.candidates == 1 else Origin.SEARCHED  # the width is at most as large

    @property
    def scored_by(self) -> Scorer:
        return self.scorer


@dataclass(frozen=True)
class Lookahead(Strategy):
    """Shallow lookahead: each of M candidates is rolled D turns on, and the first turn of the best leaf is committed.

    The paper leaves open what its width does here; ours rolls B continuations of every candidate, each a plain sample.

    Args:
        candidates: responses proposed per turn (M).
        depth: turns that each candidate is rolled on before it is judged (D); 0 judges the candidates themselves.
        width: continuations rolled per candidate (B).
        scorer: scores the leaves (S).
        commit: keep: the first turn as search saw it (the paper). resample: play it in the real episode.
    """

    candidates: int = 4
    depth: int = 2
    width: int = 2
    scorer: Scorer = field(default_factory=EnvironmentScore)
    commit: CommitMode = "keep"

    def __post_init__(self) -> None:
        _at_least_one("candidates", self.candidates)
        _at_least_one("width", self.width)
        if self.depth < 0:
            raise ConfigError(f"Lookahead.depth is {self.depth}: give the turns to look ahead, 0 or more")

    def __call__(self, root: Node) -> Search:
        node = root
        while not node.done:
            leaf = yield from self.plan(node)
            if self.commit == "resample":
                node = yield Commit(leaf.at_depth(node.depth + 1))
            else:
                node = leaf if leaf.succeeded else leaf.at_depth(node.depth + 1)
        return node

    def plan(self, node: Node) -> Search:
        leaves = distinct(flat((yield Expand([node], self.candidates))))
        for turn in range(self.depth):
            if not live(leaves) or best(1, leaves)[0].succeeded:
                break
            leaves = ended(leaves) + flat((yield Expand(live(leaves), self.width if turn == 0 else 1)))
        return best(1, leaves)[0]

    @property
    def origin(self) -> Origin:
        """A single candidate is still chosen where it is rolled on under `keep`: a success that was found on the way
        becomes the trajectory, a failure is rolled again."""
        chooses = self.candidates > 1 or (self.depth > 0 and self.commit == "keep")
        return Origin.SEARCHED if chooses else Origin.SAMPLED

    @property
    def scored_by(self) -> Scorer:
        return self.scorer


@dataclass(frozen=True)
class Expert(Strategy):
    """The environment's oracle, with noise: the source of demonstrations for a supervised warm start.

    Args:
        noise: probability that an action is a random legal one instead.
    """

    noise: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.noise <= 1:
            raise ConfigError(f"Expert.noise is {self.noise}: a probability lies between 0 and 1")

    def __call__(self, root: Node) -> Search:
        node = root
        while not node.done:
            node = yield Demonstrate(node, self.noise)
        return node

    @property
    def origin(self) -> Origin:
        return Origin.DEMONSTRATED


def _committed(plan: Callable[[Node], Search], root: Node, commit: CommitMode) -> Search:
    """The leaf that `plan` chose, or, under `resample`, the episode lived by replanning after every turn."""
    if commit == "keep":
        return (yield from plan(root))
    node = root
    while not node.done:
        leaf = yield from plan(node)
        node = yield Commit(leaf.at_depth(node.depth + 1))
    return node


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"search.{name} is {value}: give 1 or more")
