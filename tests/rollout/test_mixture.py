"""A mixture of environments: which one an instance is of, what is held out, and runs that train and resume on it."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import QUICK, ROOT, TINY, in_folder, tsr

from tsr_lightning.cli.app import TSRCLI
from tsr_lightning.envs.base import fingerprint
from tsr_lightning.envs.frozen_lake import TextFrozenLake
from tsr_lightning.envs.make import make_env
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key, Stream
from tsr_lightning.rollout.instances import HeldOut, Instance, Instances
from tsr_lightning.rollout.mixture import MixtureEntry, choose, mixture_of

REST = {"name": None, "first_epoch": 0, "last_epoch": None}  # of an entry that says nothing of them
LAKE, SOKOBAN = make_env("tsr/FrozenLake-v0", size=3), make_env("tsr/Sokoban-v0")
MIXTURE = (
    "[{env: tsr/FrozenLake-v0, env_kwargs: {prompt_style: bare, max_turns: 3}}, "
    "{env: tsr/Sokoban-v0, env_kwargs: {prompt_style: bare, max_turns: 3}, weight: 2, name: boxes}]"
)
KEPT = '[{class_path: ModelCheckpoint, init_args: {filename: "{epoch}", save_top_k: -1}}, '
KEPT += "{class_path: callbacks.Evaluation}]"
RUN = (
    *("fit", "--config", "sokoban.yaml", "--config", "objective/ppo.yaml", *QUICK, "--data.env", MIXTURE),
    *("--model.policy.model", TINY, "--data.instances", "6", "--trainer.callbacks", KEPT),
    *("--trainer.check_val_every_n_epoch", "1"),
    *("--model.objective.init_args.format_penalty", "0.1"),  # a signal though nothing succeeds
)


def mixture(weights: tuple[float, ...] = (1, 3), held_out: int = 20) -> Instances:
    return Instances([LAKE, SOKOBAN], Key(1), HeldOut(held_out), lambda epoch: weights)


def initial(instance: Instance) -> tuple[int, str]:
    index, seed = instance
    env = (LAKE, SOKOBAN)[index]
    env.reset(seed=seed)
    return index, fingerprint(env.state_key())


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 3.0), (0.5, 0.25, 0.25)])
def test_choices_follow_the_weights(weights: tuple[float, ...]) -> None:
    """Within four standard errors of 4,000 draws, each at most 1/2 / √4000."""
    counts = Counter(choose(weights, Key(i)) for i in range(4000))
    for index, weight in enumerate(weights):
        assert counts[index] / 4000 == pytest.approx(weight / sum(weights), abs=4 * 0.5 / 4000**0.5)


def test_an_environment_of_weight_zero_is_held_out_and_never_trained_on() -> None:
    for weights in [(0, 1), (1, 0)]:
        drawn = mixture(weights)
        assert {env for env, _ in drawn.training(0, 100).instances} == {weights.index(1)}
        assert {env for env, _ in drawn.held_out} == {0, 1}


def test_an_environment_is_trained_on_from_its_first_epoch_to_its_last() -> None:
    entries = [MixtureEntry("a", last_epoch=2), MixtureEntry("b", weight=3.0, first_epoch=1)]
    weights = [[entry.weight_in(epoch) for entry in entries] for epoch in range(5)]
    assert weights == [[1.0, 0.0], [1.0, 3.0], [1.0, 3.0], [0.0, 3.0], [0.0, 3.0]]
    growing = Instances([LAKE, SOKOBAN], Key(1), HeldOut(5), weights.__getitem__)
    drawn = [{env for env, _ in growing.training(epoch, 30).instances} for epoch in range(4)]  # announces one ahead
    assert drawn == [{0}, {0, 1}, {0, 1}, {1}]
    assert {env for env, _ in growing.held_out} == {0, 1}


def test_epochs_without_an_environment_to_train_on_are_refused() -> None:
    for entries, epoch in [
        ([MixtureEntry("a", first_epoch=1), MixtureEntry("b", weight=0.0)], 0),
        ([MixtureEntry("a", last_epoch=3), MixtureEntry("b", first_epoch=5)], 4),
        ([MixtureEntry("a", last_epoch=3), MixtureEntry("b", last_epoch=7)], 8),
    ]:
        with pytest.raises(ConfigError, match=rf"no entry with a weight is trained on in epoch {epoch};"):
            mixture_of(entries, None)
    with pytest.raises(ConfigError, match=r"data\.env\.last_epoch is 2: give null, or 3 \(first_epoch\) or more"):
        MixtureEntry("a", first_epoch=3, last_epoch=2)
    with pytest.raises(ConfigError, match=r"data\.env\.first_epoch is -1: give 0 or more"):
        MixtureEntry("a", first_epoch=-1)


def test_instances_are_a_pure_function_of_epoch_and_place() -> None:
    one, other = mixture(), mixture()
    forward = [one.training(epoch, 12).instances for epoch in range(3)]
    assert [other.training(epoch, 12).instances for epoch in (2, 1, 0)] == forward[::-1]
    assert other.training(1, 5).instances == forward[1][:5]
    assert {env for epoch in forward for env, _ in epoch} == {0, 1}


def test_a_mixture_of_one_draws_the_seeds_of_earlier_versions() -> None:
    drawn = Instances([LAKE], Key(1), HeldOut(0)).training(5, 64).instances
    assert drawn == tuple((0, Key(1).fold_in(Stream.INSTANCE, 5, place, 0).bits() >> 33) for place in range(64))


def test_each_environment_keeps_its_own_held_out_instances() -> None:
    """As many as it has alone, and the same; none of them is trained on."""
    both = mixture()
    alone = [Instances([env], Key(2), HeldOut(20)).held_out for env in (LAKE, SOKOBAN)]
    assert both.held_out == tuple((env, seed) for env, held in enumerate(alone) for _, seed in held)
    drawn = both.training(0, 150)
    assert drawn.skipped > 0
    assert {initial(one) for one in both.held_out}.isdisjoint(initial(one) for one in drawn.instances)


class Pond(TextFrozenLake):
    """The same task by another class."""


def test_what_one_environment_holds_out_no_other_trains_on() -> None:
    """Of a task and its subclass, whose held-out sets differ; what is trained on counts against both."""
    envs = [TextFrozenLake(size=3), Pond(size=3, frozen=0.6)]
    both = Instances(envs, Key(1), HeldOut(40), lambda epoch: (1, 1))
    drawn = both.training(0, 200)

    def states(instances: Iterable[Instance | None]) -> Iterator[tuple[int, str]]:
        for index, seed in filter(None, instances):
            envs[index].reset(seed=seed)
            yield index, fingerprint(envs[index].state_key())

    held, trained = list(states(both.held_out)), list(states(drawn.instances))
    assert {env for env, _ in trained} == {0, 1}
    assert {fingerprint for _, fingerprint in held}.isdisjoint(fingerprint for _, fingerprint in trained)
    assert f", of {len(set(trained))} different initial states, 0 of them held out" in both.summary
    assert both.summary.endswith("were drawn again); a state of two environments counts as two")
    both.load_state_dict({"instances": 1, "states": [(0, int(held[-1][1][:15], 16))], "skipped": 0})  # held out of 1
    assert "1 rolled out for training, of 1 different initial states, 1 of them held out" in both.summary


def state(cli: TSRCLI) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The weights and the figures of held-out instances, but for the time they took."""
    figures = {name: float(value) for name, value in cli.trainer.callback_metrics.items() if name.startswith("val/")}
    return cli.model.state_dict(), {name: value for name, value in figures.items() if not name.endswith("seconds")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning")  # lightning's, of every next version_
def test_a_resumed_run_on_a_mixture_equals_the_uninterrupted(tmp_path: Path) -> None:
    with in_folder(tmp_path):
        whole = tsr(*RUN)
        first = next(path for path in tmp_path.rglob("*epoch=0.ckpt"))
        resumed = tsr(*RUN, "--ckpt_path", first)
    (weights, figures), (their_weights, their_figures) = state(whole), state(resumed)
    assert whole.trainer.global_step == resumed.trainer.global_step > 2
    for name, weight in weights.items():
        assert torch.equal(weight, their_weights[name]), name
    assert figures == their_figures
    by_env = [figures[f"val/sampled/success_rate/{name}"] for name in ("tsr/FrozenLake-v0", "boxes")]
    assert figures["val/sampled/success_rate"] == pytest.approx(sum(by_env) / 2)


def test_the_readmes_mixture_replaces_an_environment_and_its_arguments(empty_folder: Path, capsys) -> None:
    [example] = re.findall(r"```yaml\n(data:.*?)```", (ROOT / "docs/extend.md").read_text(encoding="utf-8"), re.DOTALL)
    (empty_folder / "mixture.yaml").write_text(example)
    with pytest.raises(SystemExit):
        tsr(*RUN[:3], "--config", "mixture.yaml", "--print_config")
    data: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)["data"]
    sokoban, lake = data["env"]
    assert sokoban == {"env": "tsr/Sokoban-v0", "env_kwargs": {"prompt_style": "bare"}, "weight": 2.0, **REST}
    assert lake == {"env": "tsr/FrozenLake-v0", "env_kwargs": {"prompt_style": "bare"}, "weight": 1.0, **REST}
    assert data["env_kwargs"] is None
