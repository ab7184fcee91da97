"""PUCT, the tree search of AlphaZero (arXiv 1712.01815), over responses sampled from the policy. In this folder:

    tsr fit --config configs/sokoban.yaml --config configs/credit/imitate.yaml --data.plan.init_args.strategy puct.PUCT

Departures: a value is the environment's score, the root gets no noise, and the first success visited ends the search.
"""

import math
from dataclasses import dataclass, field
from functools import partial

from tsr_lightning.search.scorers import EnvironmentScore
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.search.traits import Traits
from tsr_lightning.search.tree import Expand, Node, Search, distinct, flat
from tsr_lightning.trajectory import Origin


@dataclass
class Statistics:
    prior: float = 1.0
    visits: int = 0
    value_sum: float = 0.0
    children: list[Node["Statistics"]] = field(default_factory=list)


def puct(exploration: float, node: Node[Statistics], child: Node[Statistics]) -> float:
    """Q + c P √N / (1 + n), the selection rule of AlphaZero; Q is 0 before the first visit."""
    value = child.data.value_sum / max(1, child.data.visits)
    return value + exploration * child.data.prior * math.sqrt(node.data.visits) / (1 + child.data.visits)


@dataclass(frozen=True)
class PUCT(Strategy[Statistics]):
    simulations: int = 16  # per turn
    candidates: int = 4  # responses proposed at each node
    exploration: float = 1.25  # c, a constant
    traits = Traits(
        origin=Origin.SEARCHED,
        branches=True,
        independent_siblings=True,  # a node is expanded once
        monte_carlo_rollouts=False,
        scored_by=EnvironmentScore(),
        scores_every_node=True,  # the root's value is its score
    )

    def __call__(self, root: Node[Statistics]) -> Search[Statistics]:
        root.data, node = Statistics(), root
        while not node.done:
            for _ in range(self.simulations):
                leaf = yield from self.simulate(node)
                if leaf.succeeded:
                    return leaf
            node = max(node.data.children, key=lambda child: child.data.visits)
        return node

    def simulate(self, leaf: Node[Statistics]) -> Search[Statistics]:
        while leaf.data.children:
            leaf = max(leaf.data.children, key=partial(puct, self.exploration, leaf))
        if not leaf.done:
            children = leaf.data.children = distinct(flat((yield Expand([leaf], self.candidates))))
            highest = max(child.logprob for child in children)
            likelihoods = [math.exp(child.logprob - highest) for child in children]
            for child, likelihood in zip(children, likelihoods, strict=True):
                child.data = Statistics(prior=likelihood / sum(likelihoods))
        for node in leaf.path:
            node.data.visits += 1
            node.data.value_sum += leaf.score
        return leaf
