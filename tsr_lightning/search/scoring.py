"""Scores the nodes of many searches at once."""

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine
from tsr_lightning.errors import RunError
from tsr_lightning.rng import Key
from tsr_lightning.search.retry import RetriesExhausted
from tsr_lightning.search.scorers import Scorer
from tsr_lightning.search.simulator import TurnSimulator
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.search.tree import Node


class Scored(NamedTuple):
    """The costs of scoring, and the nodes without a score."""

    costs: Costs  # of the environment where a scorer plays on; the engine counts its own
    lost: frozenset[int]  # `id` of nodes from which the environment failed for good


class Scoring:
    """Sets the scores of nodes by the scorers of their strategies.

    Args:
        engine: gives the critic's values.
        simulator: plays on from nodes, and knows their prompts.
    """

    def __init__(self, engine: Engine, simulator: TurnSimulator) -> None:
        self._engine = engine
        self._simulator = simulator
        # A strategy's scorer and what it is in these searches, by the identity of the first, which is kept so that no
        # other can have it
        self._scorers: dict[int, tuple[Scorer, Scorer]] = {}
        self._costs = Costs()
        self._lost: set[int] = set()

    def score(self, groups: Sequence[tuple[Strategy, Sequence[Node]]]) -> Scored:
        """Sets the scores of the nodes of strategies, one call per scorer, so that a critic sees one batch.

        Raises:
            RunError: a score is not finite.
        """
        batches: dict[int, tuple[Scorer, list[Node]]] = {}
        for strategy, own in groups:
            scorer = strategy.traits.scored_by
            if own and scorer is not None:
                if id(scorer) not in self._scorers:
                    self._scorers[id(scorer)] = (scorer, scorer.in_search(self._play_randomly))
                _, nodes = batches.setdefault(id(scorer), (self._scorers[id(scorer)][1], []))
                nodes.extend(own)
        for scorer, nodes in batches.values():
            for node, score in zip(nodes, scorer(nodes, self._values), strict=True):
                if id(node) not in self._lost:
                    node.score = _finite(score, scorer, node)
        costs, self._costs = self._costs, Costs()
        lost, self._lost = frozenset(self._lost), set()
        return Scored(costs, lost)

    def _play_randomly(self, node: Node, keys: Sequence[Key], horizon: int) -> list[int | None] | None:
        """See `scorers.RandomPlay`. A node from which the environment fails for good is lost, whatever its score."""
        started = time.perf_counter()
        try:
            return self._simulator.play_randomly(node, keys, horizon)
        except RetriesExhausted:
            self._lost.add(id(node))
            return None
        finally:
            self._costs += Costs(seconds_environment=time.perf_counter() - started)

    def _values(self, nodes: Sequence[Node]) -> list[float]:
        return self._engine.values([self._simulator.prompt(node) for node in nodes])


def _finite(score: float, scorer: Scorer, node: Node) -> float:
    if math.isfinite(score):
        return score
    response = repr(node.turn.text) if node.turn is not None else "no response yet"
    raise RunError(
        f"{type(scorer).__name__} gives the score {score} (instance {node.driver.instance}, after {response}); let it "
        "give finite numbers"
    )
