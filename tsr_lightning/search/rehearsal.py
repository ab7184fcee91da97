"""Rehearses strategies and scorers on small trees of fakes, before a model loads: a property that is wrong or was
forgotten, a mistake in the program and a search that does not end are refused in one sentence.

What cannot be seen so: whether further samples are Monte-Carlo rollouts, and branches too rare for a small tree.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tsr_lightning.errors import ConfigError, describe
from tsr_lightning.rng import Key
from tsr_lightning.search.fake_tree import Drive, Misuse, Outcome, Path, SetScores, drive
from tsr_lightning.search.scorers import Scorer
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.search.traits import Traits
from tsr_lightning.search.tree import Expand, Node, Search
from tsr_lightning.trajectory import Origin

TURNS = 4
TREES = ((0, 0.0), (1, 0.3), (2, 0.5), (3, 0.9))  # seeds, and chances that an episode which ends has succeeded
_VARIED_NODES = 10_000  # about as many are made for the variations of one tree
_FAILED, _SUCCEEDED = Outcome(True), Outcome(True, True, 1.0, 1.0)


@dataclass(frozen=True)
class _Tree:
    """Outcomes that are drawn by place, but for those that are given."""

    seed: int
    success: float
    given: Mapping[Path, Outcome] = field(default_factory=lambda: MappingProxyType({}))

    def __call__(self, path: Path) -> Outcome:
        if path in self.given:
            return self.given[path]
        key = Key(self.seed).fold_in("outcome", *path)
        done = len(path) >= TURNS or key.uniform(0) < 0.2
        if done and key.uniform(1) < self.success:
            return _SUCCEEDED
        return Outcome(done, score=key.uniform(2) * 0.9, reward=-0.1 * key.uniform(3))

    def with_given(self, given: Mapping[Path, Outcome]) -> "_Tree":
        return _Tree(self.seed, self.success, MappingProxyType(dict(given)))


def rehearse(strategy: Strategy) -> None:
    """Compares a strategy's traits with what it does.

    Raises:
        ConfigError: they differ, its program is wrong, or it does not end.
    """
    name = type(strategy).__name__
    traits = strategy.traits
    if not isinstance(traits, Traits):
        raise ConfigError(f"{name}.traits is {traits!r}: give a tsr_lightning.search.traits.Traits")
    if traits.scored_by is not None:
        rehearse_scorer(traits.scored_by)
    play = _player(name, strategy, traits)
    for seed, success in TREES:
        tree = _Tree(seed, success)
        run = play(tree, False)
        _check_requests(name, traits, run)
        count = max(1, min(8, _VARIED_NODES // len(run.nodes)))
        if traits.origin is Origin.SAMPLED:
            _check_selection(name, play, tree, run, count)
        if traits.independent_siblings:
            _check_siblings(name, traits, play, tree, run, count)
    play(_Tree(0, 0.5), True)


def rehearse_scorer(scorer: Scorer) -> None:
    """Compares a scorer's properties with what it does.

    Raises:
        ConfigError: they differ, its program is wrong, or a score is not finite.
    """
    name, asked = type(scorer).__name__, list[Node]()

    def critic(nodes: Sequence[Node]) -> list[float]:
        asked.extend(nodes)
        return [0.5 for _ in nodes]

    with_rewards, without = _twins(0.25), _twins(0.0)
    failures = _twins(0.0, _FAILED)
    try:
        rehearsed = scorer.in_search(_play_randomly)
        scores = [list(rehearsed(nodes, critic)) for nodes in (with_rewards, without, failures)]
        alone = [score for node in without for score in rehearsed([node], critic)]
    except Exception as error:
        raise ConfigError(f"{name} failed in its rehearsal on a small tree: {describe(error)}") from error
    for nodes, found in zip((with_rewards, without, failures), scores, strict=True):
        if len(found) != len(nodes):
            raise ConfigError(f"{name} gives {len(found)} scores for {len(nodes)} nodes: give one for each")
        if not all(math.isfinite(score) for score in found):
            raise ConfigError(f"{name} gives the scores {found}: give finite numbers")
    if asked and not scorer.needs_critic:
        raise ConfigError(f"{name}.needs_critic is False, and it asks the critic for values: let it be True")
    if not all(
        math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-5) for one, other in zip(alone, scores[1], strict=False)
    ):
        raise ConfigError(
            f"{name} gives nodes the scores {scores[1]}, and {alone} when it is asked for each alone afterwards: let a "
            "score depend on its node and the critic, not on earlier calls nor on the rest of the batch"
        )
    if scores[0] != scores[1] and not scorer.includes_rewards:
        raise ConfigError(
            f"{name}.includes_rewards is False, and its score changes with the rewards before a node: let it be True"
        )
    if all(won < lost for node, won, lost in zip(without, *scores[1:], strict=True) if node.succeeded):
        raise ConfigError(f"{name} scores a success below a failure in its place: change the sign")


Play = Callable[[_Tree, bool], Drive]


def _player(name: str, strategy: Strategy, traits: Traits) -> Play:
    """Drives the strategy through a tree; the second argument loses responses."""
    scorer = None if traits.scored_by is None else traits.scored_by.in_search(_play_randomly)

    def set_scores(nodes: Sequence[Node]) -> None:
        assert scorer is not None
        for node, score in zip(nodes, scorer(nodes, lambda asked: [0.5 for _ in asked]), strict=True):
            node.score = score

    scores: SetScores | None = None if scorer is None else set_scores

    def play(tree: _Tree, loses: bool) -> Drive:
        every, key = traits.scores_every_node, Key(tree.seed)
        try:
            return drive(strategy, tree, TURNS, scores, scores_every_node=every, key=key, loses=loses)
        except ConfigError:
            raise
        except Misuse as misuse:
            raise ConfigError(f"{name} {misuse}") from misuse
        except Exception as error:
            where = "in which responses are lost, as where an environment fails" if loses else "of fakes"
            raise ConfigError(f"{name} failed in its rehearsal on a small tree {where}: {describe(error)}") from error

    return play


def _check_requests(name: str, traits: Traits, run: Drive) -> None:
    """Checks what can be seen in one search."""
    steps = {run.leaf[:depth] for depth in range(1, len(run.leaf) + 1)}
    demonstrates = traits.origin is Origin.DEMONSTRATED
    if any((step in run.demonstrated) != demonstrates for step in steps):
        did = (
            "some turns of its trajectory are a demonstrator's"
            if not demonstrates
            else "the policy plays some of its turns"
        )
        raise _differs(name, "origin", traits.origin.name, did)
    greedy = [request.greedy for request in run.requests if isinstance(request, Expand)]
    if traits.origin is Origin.GREEDY and not all(greedy):
        raise _differs(name, "origin", "GREEDY", "it samples responses")
    if traits.origin is not Origin.GREEDY and any(greedy):
        raise _differs(name, "origin", traits.origin.name, "it asks for greedy responses, which are no samples")
    if not traits.branches and any(run.drawn(path) > 1 for path in run.batches):
        raise _differs(name, "branches", False, "it draws several responses in a state")
    if any(isinstance(request, Expand) and request.without_replacement for request in run.requests):
        if not traits.without_replacement:
            raise _differs(name, "without_replacement", False, "it asks for responses without replacement")
        if traits.independent_siblings and any(run.drawn(path) > 1 for path in run.batches):
            raise _differs(name, "independent_siblings", True, "it asks for responses without replacement")


def _check_selection(name: str, play: Play, tree: _Tree, run: Drive, count: int) -> None:
    """No other trajectory may be returned because something came out otherwise."""
    for path, node in list(run.nodes.items())[1 : 1 + 4 * count]:
        better = _SUCCEEDED if node.done else Outcome(False, score=0.99)
        worse = _FAILED if node.done else Outcome(False, score=-0.99)
        for other in (better, worse):
            leaf = play(tree.with_given({path: other}), False).leaf
            if leaf != run.leaf:
                raise _differs(
                    name, "origin", "SAMPLED", "which trajectory it returns depends on what came of responses"
                )


def _check_siblings(name: str, traits: Traits, play: Play, tree: _Tree, run: Drive, count: int) -> None:
    """Checks that as many responses are drawn in a state whatever came of the first of them."""
    for path, batches in list(run.batches.items())[:count]:
        failed, succeeded = (
            play(tree.with_given(dict.fromkeys(batches[0], outcome)), False).drawn(path)
            for outcome in (_FAILED, _SUCCEEDED)
        )
        if failed > succeeded:
            raise _differs(
                name, "independent_siblings", True, "it draws further responses in a state where earlier ones failed"
            )
        if succeeded > failed and not traits.monte_carlo_rollouts:
            raise _differs(
                name, "independent_siblings", True, "it draws further responses in a state where earlier ones succeeded"
            )


def _differs(name: str, trait: str, value: object, did: str) -> ConfigError:
    return ConfigError(
        f"{name}.traits.{trait} is {value}, and in a rehearsal {did}: correct the trait, or the strategy"
    )


def _play_randomly(node: Node, keys: Sequence[Key], horizon: int) -> list[int | None]:
    """Random play of fakes, of which every second one succeeds."""
    return [1 + key.bits() % horizon if key.bits(1) % 2 else None for key in keys]


def _twins(reward: float, best: Outcome = _SUCCEEDED) -> list[Node]:
    """Nodes of a tree, live, failed and succeeded, that differ from others in the rewards or the best outcome alone."""
    outcomes = [Outcome(False, score=0.3), Outcome(True, score=0.6), best]
    made = drive(_Each(), lambda path: outcomes[path[-1]], 2, lambda nodes: None)
    nodes = [node for path, node in made.nodes.items() if path]
    for node in nodes:
        node.episode_return = reward * node.depth
        assert node.turn is not None
        node.turn = replace(node.turn, reward=reward)
    return nodes


@dataclass(frozen=True)
class _Each(Strategy):
    """Three responses in the first state and in each live one after it."""

    traits = Traits(origin=Origin.SEARCHED, branches=True, independent_siblings=True, monte_carlo_rollouts=False)

    def __call__(self, root: Node) -> Search:
        [children] = yield Expand([root], 3)
        [grandchildren] = yield Expand([children[0]], 3)
        return grandchildren[0]
