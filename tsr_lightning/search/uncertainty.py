"""Searches that branch where the policy is unsure, by the log-probabilities of what it sampled. No score is needed."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from statistics import fmean

from tsr_lightning.errors import require, require_coefficient
from tsr_lightning.search.branching import play_out
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.search.traits import Traits
from tsr_lightning.search.tree import Expand, Node, Search, ended, flat, live
from tsr_lightning.trajectory import Origin


@dataclass(frozen=True)
class EntropyExpansion(Strategy):
    """Plain trajectories, and further ones from the states in which the policy was least sure: the entropy-guided tree
    expansion of AT2PO (https://arxiv.org/abs/2601.04767). The best of them all is the result.

    How unsure the policy is in a state is estimated from the responses drawn there, by the mean over them of -log pi a
    token. Departs from the paper: a state can be chosen several times in a round, so that the number of trajectories is
    exactly samples + rounds * points, however few states there are. `EntropyRise` branches by the rise of the entropy
    after an observation instead.

    How often a state branches depends on how likely its responses were and on how many other states there are, never on
    success. Under tree credit states weigh by that, and not as the policy visits them (docs/gradients.md).

    Args:
        samples: plain trajectories from the root.
        rounds: in which the tree is expanded.
        points: trajectories from chosen states in each round.
        penalty: nats a token that each response drawn in a state takes off its rank; spreads the branches.
    """

    samples: int = 2
    rounds: int = 2
    points: int = 3
    penalty: float = 0.1
    traits = Traits(origin=Origin.SEARCHED, branches=True, independent_siblings=True, monte_carlo_rollouts=True)

    def __post_init__(self) -> None:
        require(self.samples >= 1, "EntropyExpansion.samples", self.samples, "give 1 or more")
        require(self.rounds >= 1, "EntropyExpansion.rounds", self.rounds, "give 1 or more; without, use BestOfN")
        require(self.points >= 1, "EntropyExpansion.points", self.points, "give 1 or more; without, use BestOfN")
        require_coefficient("EntropyExpansion.penalty", self.penalty)

    def __call__(self, root: Node) -> Search:
        leaves = yield from play_out([root], self.samples)
        for _ in range(self.rounds):
            chosen = self.choose(leaves)
            for times in sorted(set(chosen.values())):
                states = [state for state, count in chosen.items() if count == times]
                leaves += yield from play_out(states, times)
        return max(leaves, key=lambda leaf: (leaf.episode_return, leaf.tie))

    def choose(self, leaves: Sequence[Node]) -> Counter[Node]:
        """How many further responses each state on the way to the leaves gets in a round."""
        drawn: dict[Node, dict[Node, None]] = defaultdict(dict)
        for leaf in leaves:
            for state, child in pairwise(leaf.path):
                drawn[state][child] = None
        surprisals = {state: fmean(map(_nats_per_token, children)) for state, children in drawn.items()}
        chosen: Counter[Node] = Counter()

        def rank(state: Node) -> tuple[float, float]:
            return surprisals[state] - self.penalty * (len(drawn[state]) + chosen[state]), state.tie

        for _ in range(self.points):
            chosen[max(drawn, key=rank)] += 1
        return chosen


@dataclass(frozen=True)
class EntropyRise(Strategy):
    """Plain trajectories that fork after an answer of the environment at which the policy became less sure: the
    entropy-based adaptive rollout of ARPO (https://arxiv.org/abs/2507.19849, section 3.1). The best is the result.

    The entropy H_t of the first k tokens of turn t is compared with that of the first turn of its trajectory, and the
    trajectory forks where the partial sampling probability exceeds the threshold:

        dH_t = H_t - H_initial,    P_t = alpha + beta dH_t,    Branch(Z) if P_t > tau, else Continue.

    Forks share what is left of the budget, those of early turns first; trajectories from the root take what no fork
    did, so that there are exactly `total`. Departs from the paper: an entropy is estimated from what was sampled, by
    the mean of -log pi over the tokens; it is in nats a token, where the paper divides a sum over tokens by the size
    of the vocabulary and its code by the logarithm of that; and turn t is drawn whole before its state forks.

    Success has no say in where a trajectory forks, but states weigh by their forks, as in `EntropyExpansion`.

    Args:
        samples: plain trajectories from the root (the paper's N).
        total: trajectories, forks included (M).
        branches: further responses where a trajectory forks (Z).
        tokens: of a response, over which its entropy is estimated (k).
        alpha: base sampling probability.
        beta: weight of the rise of the entropy.
        threshold: the probability above which a trajectory forks (tau).
    """

    samples: int = 4
    total: int = 8
    branches: int = 1
    tokens: int = 20
    alpha: float = 0.5
    beta: float = 0.2
    threshold: float = 0.5
    traits = Traits(origin=Origin.SEARCHED, branches=True, independent_siblings=True, monte_carlo_rollouts=True)

    def __post_init__(self) -> None:
        require(self.samples >= 1, "EntropyRise.samples", self.samples, "give 1 or more")
        remedy = f"give more than the {self.samples} samples, so that some can fork; without forks, use BestOfN"
        require(self.total > self.samples, "EntropyRise.total", self.total, remedy)
        require(self.branches >= 1, "EntropyRise.branches", self.branches, "give 1 or more; without, use BestOfN")
        require(self.tokens >= 1, "EntropyRise.tokens", self.tokens, "give 1 or more, such as 20")
        for name, value in (("alpha", self.alpha), ("beta", self.beta), ("threshold", self.threshold)):
            require(isfinite(value), f"EntropyRise.{name}", value, "give a finite number, such as 0.5")

    def __call__(self, root: Node) -> Search:
        [paths] = yield Expand([root], self.samples)
        leaves, left = ended(paths), self.total - self.samples
        while paths := live(paths):
            children = flat((yield Expand(paths, 1)))
            forks = [child.parent for child in children if self.forks(child) and child.parent][: left // self.branches]
            left -= len(forks) * self.branches
            paths = children + (flat((yield Expand(forks, self.branches))) if forks else [])
            leaves += ended(paths)
        if left:
            leaves += yield from play_out([root], left)
        return max(leaves, key=lambda leaf: (leaf.episode_return, leaf.tie))

    def forks(self, node: Node) -> bool:
        """Whether the response that led to a node rose so much in entropy that its state forks."""
        rise = _nats_per_token(node, self.tokens) - _nats_per_token(node.path[1], self.tokens)
        return self.alpha + self.beta * rise > self.threshold


def _nats_per_token(node: Node, first: int | None = None) -> float:
    """-log pi a token of the response that led to a node, or of its first tokens."""
    logprobs = node.turn.behaviour_logprobs[:first] if node.turn is not None else ()
    return -sum(logprobs) / max(1, len(logprobs))
