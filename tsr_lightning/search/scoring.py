"""Scores the nodes of many searches at once."""

import math
import time
from collections.abc import Sequence

from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine
from tsr_lightning.errors import RunError
from tsr_lightning.rng import Key
from tsr_lightning.search.retry import RetriesExhausted
from tsr_lightning.search.scorers import Scorer
from tsr_lightning.search.simulator import TurnSimulator
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.search.tree import Node


class Scoring:
    """Sets the scores of nodes by the scorers of their strategies.

    Args:
        engine: gives the critic's values.
        simulator: plays on from nodes, and knows their prompts.
    """

    def __init__(self, engine: Engine, simulator: TurnSimulator) -> None:
        self._engine = engine
        self._simulator = simulator
        self._scorers: dict[int, Scorer] = {}  # as they are in these searches, by the identity of those in strategies
        self._costs = Costs()

    def score(self, groups: Sequence[tuple[Strategy, Sequence[Node]]]) -> Costs:
        """Sets the scores of the nodes of strategies, one call per scorer, so that a critic sees one batch.

        Returns:
            What the environment took where a scorer plays on; the engine counts its own.

        Raises:
            RunError: a score is not finite.
        """
        batches: dict[int, tuple[Scorer, list[Node]]] = {}
        for strategy, own in groups:
            scorer = strategy.traits.scored_by
            if own and scorer is not None:
                if id(scorer) not in self._scorers:
                    self._scorers[id(scorer)] = scorer.in_search(self._play_randomly)
                _, nodes = batches.setdefault(id(scorer), (self._scorers[id(scorer)], []))
                nodes.extend(own)
        for scorer, nodes in batches.values():
            for node, score in zip(nodes, scorer(nodes, self._values), strict=True):
                node.score = _finite(score, scorer, node)
        costs, self._costs = self._costs, Costs()
        return costs

    def _play_randomly(self, node: Node, keys: Sequence[Key], horizon: int) -> list[int | None]:
        """See `TurnSimulator.play_randomly`. Where the environment fails for good no rollout succeeds: the state is
        ranked last, and nothing is trained on that."""
        started = time.perf_counter()
        try:
            return self._simulator.play_randomly(node, keys, horizon)
        except RetriesExhausted:
            return [None] * len(keys)
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
