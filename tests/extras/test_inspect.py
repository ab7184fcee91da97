"""`tsr episodes --to inspect`: Inspect reads every candidate of a search, with its score and its fate, as branches."""

from pathlib import Path

import pytest

pytest.importorskip("inspect_ai", reason="inspect-ai is an extra: make test-extras EXTRAS=inspect")
from commands import in_folder, tsr
from inspect_ai.event import timeline_build
from inspect_ai.log import read_eval_log

from tests.saved_episodes import written
from tsr_lightning.cli.command import main
from tsr_lightning.episodes.files import read
from tsr_lightning.search.strategies import Beam

TASKS = ("sokoban", "frozen_lake", "webshop", "alfworld", "textworld")


def exported(path: Path) -> Path:
    with pytest.raises(SystemExit) as ended:
        main(["episodes", str(path), "--to", "inspect"])
    assert not ended.value.code
    return path.with_name(path.name.replace(".jsonl.gz", ".eval"))


@pytest.mark.parametrize("task", TASKS)
def test_every_candidate_of_a_beam_is_read_back(task: str, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl.gz"
    with in_folder(tmp_path):
        asked = ("--episodes", "2", "--output", path, "--data.held_out.instances", "2", "--trainer.accelerator", "cpu")
        tsr("rollout", "--config", f"{task}.yaml", "--config", "search/beam.yaml", *asked)
    log = read_eval_log(str(exported(path)))
    _, episodes = read(path)
    assert log.status == "success"
    assert log.samples is not None
    for sample, episode in zip(log.samples, episodes, strict=True):
        shown = [event for event in sample.events if event.event == "model"]
        found = sorted((event.metadata["node"], event.output.completion, *_figures(event.metadata)) for event in shown)
        assert found == [(node.id, node.text, node.score, node.fate, node.why) for node in episode.nodes]
        assert {fate for _, _, _, fate, _ in found} > {"kept"}
        said = [message.text for message in sample.messages if message.role == "assistant"]
        assert said == [node.text for node in episode.path]
        assert sample.scores is not None
        assert sample.scores["success"].value == int(episode.succeeded)


def test_what_was_discarded_are_branches_named_by_fate_and_score(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl.gz"
    [episode] = written(path, Beam(2, 4), 1)
    log = read_eval_log(str(exported(path)))
    assert log.samples is not None
    [trajectory] = timeline_build(log.samples[0].events).root.content
    beside = [node for node in episode.nodes if node.fate != "kept" and _parent_kept(node, episode.nodes)]
    expected = [f"node {node.id}: {node.fate}, score {node.score:.4g}" for node in beside]
    assert sorted(branch.name for branch in trajectory.branches) == sorted(expected)


def _figures(metadata: dict) -> tuple:
    return metadata["score"], metadata["fate"], metadata["why"]


def _parent_kept(node, nodes) -> bool:
    return node.parent is None or nodes[node.parent].fate == "kept"
