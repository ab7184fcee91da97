"""Recorded searches as episodes: every response is there, with its fate, and nothing is lost on its way to disk."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes import Guided, driver, tasks
from tests.misbehaving import Misbehaving
from tests.saved_episodes import header, recorded
from tests.search.recorded_search import Recorded
from tsr_lightning import (
    Beam,
    BestOfN,
    ContrastBeam,
    Expert,
    FirstImprovement,
    Lookahead,
    Sample,
    Strategy,
    SuffixRestarts,
    Vine,
)
from tsr_lightning.envs.base import EnvRaised
from tsr_lightning.episodes.convert import TurnCredit, prompts, to_episode, to_trajectory
from tsr_lightning.episodes.files import read, write
from tsr_lightning.rng import Key
from tsr_lightning.search.random_rollouts import MeanSuccess, RandomRollouts

STRATEGIES: list[Strategy] = [
    *(Sample(), Expert(), BestOfN(3), Beam(2, 4), Beam(2, 4, commit="resample"), Lookahead(2, 2), Vine(3)),
    *(ContrastBeam(2, 4), SuffixRestarts(Beam(2, 4)), FirstImprovement(4, without_replacement=False)),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_a_trajectory_comes_back_from_disk_as_it_was(strategy: Strategy, tmp_path: Path) -> None:
    trajectories = recorded(strategy)
    write(tmp_path / "e.jsonl.gz", header(), map(to_episode, trajectories))
    found, episodes = read(tmp_path / "e.jsonl.gz")
    assert found == header()
    assert [to_trajectory(one, tree=True, state_keys=True) for one in episodes] == [
        replace(one, record=()) for one in trajectories
    ]
    assert [prompts(one) for one in episodes] == [
        [each.candidate.turn.prompt for each in one.record] for one in trajectories
    ]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_recording_changes_no_draw(strategy: Strategy) -> None:
    plain = driver(Guided(), keep_tree=True, keep_state_keys=True).run(tasks(strategy, 8))
    assert [replace(one, record=()) for one in recorded(strategy)] == plain
    assert all(one.record == () for one in plain)


def test_every_response_of_a_beam_is_there_with_its_score_and_fate() -> None:
    searches = tasks(Beam(2, 4), 12)
    watched = [replace(task, strategy=Recorded(task.strategy)) for task in searches]
    driver(Guided()).leaves(watched)
    fates: Counter[str] = Counter()
    for task, trajectory in zip(watched, recorded(Beam(2, 4), 12), strict=True):
        episode = to_episode(trajectory)
        assert isinstance(task.strategy, Recorded)
        expected = [(one.turn.text, one.score, one.episode_return) for one in task.strategy.candidates if one.turn]
        returns: list[float] = []
        for node in episode.nodes:
            returns.append(node.reward + (0 if node.parent is None else returns[node.parent]))
        assert [(node.text, node.score, own) for node, own in zip(episode.nodes, returns, strict=True)] == expected
        assert [node.text for node in episode.path] == [turn.text for turn in trajectory.turns]
        for node in episode.nodes:
            twins = [one for one in episode.nodes if one.round == node.round and one.state == node.state]
            gone_on = any(one.parent == node.id for one in episode.nodes)
            if node.fate == "duplicate":
                assert not gone_on
                assert len(twins) > 1
                assert int(node.why.removeprefix("the state of node ")) in {one.id for one in twins} - {node.id}
            elif node.fate == "pruned":
                assert not gone_on
                assert node.ended is None
                assert f"score {node.score:.4g}, rank " in node.why
            elif node.fate == "played out":
                assert gone_on or node.ended
        fates.update(node.fate for node in episode.nodes)
    assert {"kept", "pruned", "duplicate", "played out"} <= fates.keys()


def test_what_the_environment_failed_on_is_lost_and_kept() -> None:
    env = Misbehaving(Guided(), raises=0.05)
    nodes = [node for one in recorded(Beam(2, 4), 40, env) for node in to_episode(one).nodes]
    lost = [node for node in nodes if node.fate == "lost"]
    assert lost
    assert all(node.text and node.response and node.observation == [] for node in lost)
    assert {node.why for node in lost} == {"the environment failed on it"}


class Unplayable(Guided):
    """Fails where random play begins in one of its states."""

    def play_randomly(self, keys: list[Key], horizon: int, /) -> list[int | None]:
        if self.place == 3:
            raise EnvRaised("no play from here")
        return [3] * len(keys)


def test_a_response_that_could_not_be_scored_is_lost_and_in_no_tree() -> None:
    found = recorded(Beam(2, 4, RandomRollouts(rollouts=2, value=MeanSuccess(0.5))), 40, Unplayable())
    episodes = list(map(to_episode, found))
    assert "lost" in {node.fate for each in episodes for node in each.nodes}
    assert [to_trajectory(each, tree=True).tree for each in episodes] == [one.tree for one in found]


def test_a_committed_response_names_the_turn_that_it_became() -> None:
    [episode] = [to_episode(one) for one in recorded(Beam(2, 4, commit="resample"), 1)]
    assert all(not node.drawn for node in episode.path)
    committed = {node.why for node in episode.nodes if "was played in the episode" in node.why}
    assert committed == {f"its response was played in the episode as node {node.id}" for node in episode.path}


def test_credit_goes_to_its_turn() -> None:
    [trajectory] = recorded(Beam(2, 4), 1)
    last = trajectory.record[-1].candidate.turn
    episode = to_episode(trajectory, {id(last): TurnCredit(0.25, -1.5, 2.0)})
    assert (episode.nodes[-1].value, episode.nodes[-1].advantage, episode.nodes[-1].weight) == (0.25, -1.5, 2.0)
    assert {node.advantage for node in episode.nodes[:-1]} == {None}
