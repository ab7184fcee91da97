"""A run leaves its episodes, and training on its saved rollouts ends with its weights, bit for bit."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from commands import QUICK, in_folder, tsr

from tests.saved_episodes import header, recorded
from tsr_lightning.episodes.convert import to_episode
from tsr_lightning.episodes.files import read, read_header, write
from tsr_lightning.episodes.folder import saved_in
from tsr_lightning.episodes.schema import Episode
from tsr_lightning.errors import ConfigError, RunError
from tsr_lightning.policy.chat import SingleTurn
from tsr_lightning.search import Sample
from tsr_lightning.training.mismatch import TOLERANCE
from tsr_lightning.training.saved_rollouts import SavedRollouts, _check

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's, with a new torch
LOG = '[{"class_path": "callbacks.EpisodeLog", "init_args": {"every_n_epochs": 1}}, "callbacks.InstanceFilter"]'
EVALUATED = ("--trainer.num_sanity_val_steps", "-1")
SEARCHED = ("--config", "search/beam.yaml", "--config", "credit/tree.yaml")
COMPARED = ("--config", "objective/ppo.yaml", "--data.plan.init_args.count", "4", "--data.updates.epochs", "2")
AHEAD = (*COMPARED, "--data.staleness", "1")


@pytest.fixture
def fit(tiny_model: Callable[[str], Path]) -> tuple[object, ...]:
    """Flags of a short run, that keeps all of its rollouts."""
    model = ("--model.policy.model", tiny_model("sokoban"))
    return ("fit", "--config", "sokoban.yaml", *QUICK, *model, "--trainer.callbacks", LOG)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [SEARCHED, COMPARED, pytest.param(AHEAD, marks=pytest.mark.exhaustive)])
def test_a_saved_rollout_trains_as_the_run_did(
    flags: tuple[str, ...], fit: tuple[object, ...], empty_folder: Path
) -> None:
    run = tsr(*fit, *flags, *EVALUATED, "--trainer.run_folder", "first")
    first = run.model.policy.trainable_state()
    assert run.trainer.global_step >= 4
    saved = saved_in(Path("first/episodes"))
    names = [(one.phase, one.epoch) for one in saved]
    assert names == [("greedy", 0), ("rollout", 0), ("rollout", 1), ("sampled", 0)]
    _, episodes = read(saved[1].path)
    nodes = [node for episode in episodes for node in episode.nodes]
    assert any(node.advantage for node in nodes)
    assert all((node.value is None) == (flags is SEARCHED) for node in nodes if node.weight)  # without a critic
    assert_equal_responses_have_equal_credit(episodes)
    again = tsr(*fit, *flags, "--trainer.run_folder", "again", "--data.replay", "first").model.policy.trainable_state()
    assert [name for name in first if not torch.equal(first[name], again[name])] == []
    assert not Path("again/episodes").exists()


def assert_equal_responses_have_equal_credit(episodes: Sequence[Episode]) -> None:
    """A tree trains them once, and each of them is shown with its share."""
    equal: dict[tuple[int, int | None, str], set[tuple[float | None, float | None]]] = defaultdict(set)
    for number, episode in enumerate(episodes):
        for node in episode.nodes:
            if node.drawn:
                equal[number, node.parent, node.text].add((node.advantage, node.weight))
    assert [found for found in equal.values() if len(found) > 1] == []
    for found in equal.values():
        for advantage, weight in found:
            assert (advantage is None) == (weight is None)
            assert weight != 0.0


@pytest.mark.slow
def test_another_objective_trains_on_a_saved_rollout(fit: tuple[object, ...], empty_folder: Path) -> None:
    """Its weights are others than those that sampled, which stops no run."""
    fast = ("--data.plan.init_args.count", "4", "--model.optimizer.learning_rate", "1e-3")
    flags = (*fast, "--model.optimizer.warmup_updates", "0")
    tsr(*fit, "--config", "objective/grpo.yaml", *flags, "--trainer.run_folder", "first")
    _, episodes = read(Path("first/episodes/rollout-000000.jsonl.gz"))
    assert {node.value for episode in episodes for node in episode.nodes} == {None}  # there is no critic
    other = ("--config", "objective/rloo.yaml", *flags, "--data.replay", "first")
    assert tsr(*fit, *other, "--trainer.run_folder", "again").trainer.current_epoch == 2
    with pytest.raises(RunError, match="log-probabilities of its own samples are not the trainer's"):
        tsr(*fit, *other, "--data.updates.mismatch_tolerance", TOLERANCE, "--trainer.run_folder", "strict")


@pytest.mark.slow
def test_rollouts_of_another_run_are_refused(fit: tuple[object, ...], tmp_path: Path) -> None:
    with in_folder(tmp_path):
        tsr(*fit, "--trainer.max_epochs", "1", "--trainer.run_folder", "first")
        with pytest.raises(
            ConfigError, match=r"data\.replay is 'first': it has no rollout of epoch 1; keep .*EpisodeLog\.max_mib"
        ):
            tsr(*fit, "--data.replay", "first")
        with pytest.raises(ConfigError, match=r"it was played in tsr/Sokoban-v0\(.*and the run has .*max_turns=4"):
            tsr(*fit, "--trainer.max_epochs", "1", "--data.replay", "first", "--data.env_kwargs.max_turns", "4")
        with pytest.raises(ConfigError, match=r"were sampled at temperature 1\.0, and the run has 0\.5"):
            tsr(*fit, "--trainer.max_epochs", "1", "--data.replay", "first", "--data.sampling.temperature", "0.5")
        with pytest.raises(ConfigError, match=r"are those of data\.context \w+\(.*\), and the run has LastK\(k=2\)"):
            tsr(
                *fit,
                "--trainer.max_epochs",
                "1",
                "--data.replay",
                "first",
                "--data.context",
                "LastK",
                "--data.context.k",
                "2",
            )
        with pytest.raises(ConfigError, match="gone: there is no such file or folder"):
            tsr(*fit, "--data.replay", "gone")


@pytest.mark.slow
def test_a_missing_rollout_is_told_before_the_evaluation_at_the_start(
    fit: tuple[object, ...], empty_folder: Path
) -> None:
    one_epoch = (*fit, "--trainer.max_epochs", "1")
    tsr(*one_epoch, "--trainer.run_folder", "first")
    file = Path("first/episodes/rollout-000000.jsonl.gz")
    saved, episodes = read(file)
    write(file.with_name("rollout-000001.jsonl.gz"), replace(saved, epoch=1), episodes)
    file.unlink()
    with pytest.raises(ConfigError, match=r"data\.replay is 'first': it has no rollout of epoch 0"):
        tsr(*fit, *EVALUATED, "--data.replay", "first", "--trainer.run_folder", "again")
    assert not Path("again/episodes").exists()  # where the evaluation's would be


@pytest.mark.slow
def test_held_out_instances_are_not_trained_on(fit: tuple[object, ...], tmp_path: Path) -> None:
    """`tsr rollout` plays those that a run is evaluated on; they may be trained on where others are held out."""
    model = fit[fit.index("--model.policy.model") + 1]
    played = ("--config", "sokoban.yaml", "--model.policy.model", model, "--data.held_out.instances", "4")
    with in_folder(tmp_path):
        tsr("rollout", *played, "--config", "search/expert.yaml", "--episodes", "4", "--output", "e.jsonl.gz")
        taught = (*fit, "--config", "objective/sft.yaml", "--trainer.max_epochs", "1", "--data.replay", "e.jsonl.gz")
        taught = (*taught, "--data.updates.min_trajectories", "1", "--data.held_out.instances", "4")
        with pytest.raises(
            ConfigError, match=r"e\.jsonl\.gz has episodes of held-out instances \(seed \d+\), .* others by"
        ):
            tsr(*taught, "--trainer.run_folder", "refused")
        cli = tsr(*taught, "--data.held_out.seed", "7", "--trainer.run_folder", "taught")
    assert cli.trainer.global_step >= 1
    assert (
        "; 4 rolled out for training, of 4 different initial states, 0 of them held out"
        in cli.datamodule.instances.summary
    )


def test_arguments_are_compared_as_a_file_holds_them(tmp_path: Path) -> None:
    """A program may give what JSON lacks: tuples, paths, numbers without a bound."""
    path, played = tmp_path / "rollout.jsonl.gz", header(size=(5, 5), folder=Path("levels"), limit=float("inf"))
    write(path, played, [])
    assert read_header(path).envs[0]["env_kwargs"] == {"size": [5, 5], "folder": "levels", "limit": "Infinity"}
    _check(read_header(path), path, played.envs, played.temperature, played.context)
    with pytest.raises(ConfigError, match=r"was played in .*size=\[5, 5\], .*, and the run has .*size=\[5, 6\]"):
        _check(read_header(path), path, header(size=(5, 6), folder="levels").envs, played.temperature, played.context)


def saved_rollouts(folder: Path, epochs: Sequence[int], limit: int, resting: int | None = None) -> SavedRollouts:
    """The rollouts of `epochs`, read by a run of `limit` epochs, whose plan has none in epoch `resting`."""
    for epoch in epochs:
        episodes = map(to_episode, recorded(Sample(), 1))
        write(folder / f"rollout-{epoch:06d}.jsonl.gz", replace(header(), epoch=epoch), episodes)
    spec, instances = Mock(), Mock(is_held_out=Mock(return_value=False))
    spec.plan.group_size = lambda epoch: 0 if epoch == resting else 4
    run = Mock(max_epochs=limit), Mock(temperature=1.0), spec
    return SavedRollouts(*run, str(folder), header().envs, instances, SingleTurn())


def test_a_run_needs_the_rollouts_of_the_epochs_that_it_has_left(tmp_path: Path) -> None:
    saved = saved_rollouts(tmp_path, (2, 3), limit=4, resting=1)
    assert saved.take(1, Mock()) is None
    with pytest.raises(ConfigError, match="it has no rollout of epoch 0"):
        saved.take(0, Mock())
    with pytest.raises(ConfigError, match="it has no rollout of epoch 4"):
        saved_rollouts(tmp_path, (), limit=9)


def test_a_missing_rollout_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    saved = saved_rollouts(tmp_path, (0, 3), limit=4, resting=1)
    with pytest.raises(ConfigError, match="it has no rollout of epoch 2"):
        saved.take(0, Mock())


def test_a_rollout_without_episodes_is_refused(tmp_path: Path) -> None:
    """As `tsr play` leaves one where no game was played."""
    write(tmp_path / "rollout-000000.jsonl.gz", header(), [])
    with pytest.raises(ConfigError, match=r"data\.replay is '.*rollout-000000\.jsonl\.gz': it has no episodes"):
        saved_rollouts(tmp_path, (), limit=1)
