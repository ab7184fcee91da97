"""Instances that the policy sometimes solves are drawn again, also in a resumed run."""

import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from tests.commands import QUICK, TINY, tsr
from tsr_lightning.envs.base import fingerprint
from tsr_lightning.envs.make import make_env
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key
from tsr_lightning.rollout.instances import HeldOut, Instances
from tsr_lightning.rollout.learnability import Learnability, Rate, Revisits, most_learnable
from tsr_lightning.search.plan import Mixed, PlanEntry, Uniform
from tsr_lightning.search.strategies import Beam, Sample
from tsr_lightning.trajectory import Ended, Group, Origin, Trajectory


def group(instance: tuple[int, int], outcomes: str, origin: Origin = Origin.SAMPLED) -> Group:
    env, seed = instance

    def trajectory(member: int, outcome: str) -> Trajectory:
        ended = Ended.SUCCEEDED if outcome == "+" else Ended.FAILED
        return Trajectory(seed, member, "Sample", origin, (), ended, (), (), env=env)

    return Group(seed, tuple(trajectory(*each) for each in enumerate(outcomes)), env)


def source(share: float = 0.5, pool: int = 8, weights: Any = None) -> Instances:
    lake = make_env("tsr/FrozenLake-v0", size=4)
    return Instances([lake], Key(1), HeldOut(64), weights, learnability=Learnability(share, pool))


def rolled_out(instances: Instances, epoch: int) -> list[Group]:
    """Groups of which two in three are solved by half of their samples."""
    drawn = [place for place in instances.training(epoch, 8).instances if place is not None]
    return [group(place, "+-" if place[1] % 3 else "++") for place in drawn]


def test_learnable_is_what_half_of_the_samples_solve():
    # p (1 - p) is 3/16, 1/4, 0, 1/4, 0 and 3/16: the two of 1/4 first, of which the later one leads.
    rates = {(0, seed): Rate(p, seed) for seed, p in enumerate((0.25, 0.5, 1.0, 0.5, 0.0, 0.75))}
    assert list(most_learnable(rates, 3)) == [(0, 3), (0, 1), (0, 5)]
    assert list(most_learnable(rates, 9)) == [(0, 3), (0, 1), (0, 5), (0, 0)]


def test_a_share_of_an_epoch_is_drawn_again_and_the_rest_is_new():
    """All outcomes are known at the latest roll-out: what is solved then leaves the pool. Searched ones say nothing."""
    instances, plain = source(pool=3), Instances([make_env("tsr/FrozenLake-v0", size=4)], Key(1), HeldOut(64))
    first = instances.training(0, 8)
    assert first == plain.training(0, 8)  # nothing is known yet
    places = [place for place in first.instances if place is not None]
    outcomes = ("+-", "++", "--", "+-", "+---", "-+", "+", "-")
    instances.observe(0, [group(place, of) for place, of in zip(places, outcomes, strict=True)], 0)
    instances.observe(1, [group(places[0], "++"), group(places[1], "+-", Origin.SEARCHED)], 0)
    drawn = instances.training(2, 8).instances
    assert set(drawn[:2]) == {places[3], places[5]}  # of the half, as many as there are: 3/16 was forgotten for 1/4
    assert drawn[2:] == plain.training(2, 8).instances[2:]
    assert set(instances.training(1, 8).instances[:3]) == {places[0], places[3], places[5]}  # as it was then
    assert instances.training(2, 4, first=8).instances == plain.training(2, 4, first=8).instances  # further rounds
    assert len(set(instances.training(2, 2).instances) & {places[3], places[5]}) == 1


def test_the_pool_goes_on_where_the_checkpoint_left_it():
    whole, resumed = source(), source()
    for epoch in range(4):
        whole.observe(epoch, rolled_out(whole, epoch), max(0, epoch - 1))
    resumed.load_state_dict(whole.state_dict(3))  # the rollout of epoch 3 had begun, and is collected again
    assert resumed.training(3, 8) == whole.training(3, 8)
    assert resumed.state_dict(3) == whole.state_dict(3)
    assert resumed.training(4, 8) != whole.training(4, 8)
    resumed.observe(3, rolled_out(resumed, 3), 3)
    assert resumed.training(4, 8) == whole.training(4, 8)


def test_a_mixture_that_lost_an_environment_forgets_its_instances():
    """A run that goes on with fewer environments draws again what is left."""
    both = Instances(
        [make_env("tsr/FrozenLake-v0", size=size) for size in (4, 5)],
        Key(1),
        HeldOut(8),
        learnability=Learnability(0.5),
    )
    both.observe(0, [group((0, 7), "+-"), group((1, 8), "+-")], 0)
    alone = source()
    alone.load_state_dict(both.state_dict(1))
    assert alone.training(1, 8).instances[0] == (0, 7)
    assert all(place is not None and place[0] == 0 for place in alone.training(1, 8).instances)


def revisits(pool: int) -> Revisits:
    return Revisits(Learnability(pool=pool), Key(1))


def rates_of(own: Revisits, epochs: int) -> dict[tuple[int, int], Rate]:
    return {(env, seed): Rate(*rate) for env, seed, *rate in own.state_dict(epochs)["rates"]}


@pytest.mark.parametrize("staleness", [0, 3])
def test_a_pool_is_what_sorting_all_rates_anew_in_every_epoch_leaves(staleness: int):
    """Also for the epochs that a checkpoint may ask for while later ones have been rolled out."""
    own, draws, left = revisits(5), random.Random(1), dict[tuple[int, int], Rate]()
    by_epoch = {0: dict[tuple[int, int], Rate]()}
    for epoch in range(60):
        solved = {(0, seed): draws.randrange(5) for seed in draws.sample(range(40), 6)}
        groups = [group(place, "+" * n + "-" * (4 - n)) for place, n in solved.items()]
        own.observe(epoch, groups, max(0, epoch - staleness), (0,))
        left = left | {place: Rate(n / 4, epoch) for place, n in solved.items()}
        ranked = sorted(left, key=lambda place: (left[place].learnability, left[place].epoch, place), reverse=True)
        left = {place: left[place] for place in ranked[:5] if left[place].learnability > 0}
        by_epoch[epoch + 1] = left
        for asked in range(max(0, epoch - staleness), epoch + 2):
            assert rates_of(own, asked) == by_epoch[asked]


def test_memory_is_flat_over_hundreds_of_epochs():
    """Every epoch shows 64 new learnable instances; what is kept, and a checkpoint, have the size of the pool."""
    own, sizes = revisits(32), []
    for epoch in range(300):
        own.observe(epoch, [group((0, 64 * epoch + i), "+-") for i in range(64)], max(0, epoch - 1), (0,))
        sizes.append(len(pickle.dumps(own)))
        assert len(own.state_dict(epoch + 1)["rates"]) == 32
    assert sizes[-1] < 1.1 * sizes[3]  # numbers have more digits


def test_neither_held_out_states_nor_environments_that_have_left_come_again():
    instances = source(weights=lambda epoch: [1.0] if epoch < 5 else [0.0])
    held_out = instances.held_out[0]
    instances.observe(0, [group(held_out, "+-")], 0)
    own = make_env("tsr/FrozenLake-v0", size=4)

    def state(seed: int) -> str:
        own.reset(seed=seed)
        return fingerprint(own.state_key())

    kept = {state(seed) for _, seed in instances.held_out}
    assert kept.isdisjoint(state(place[1]) for place in instances.training(1, 8).instances if place is not None)
    [known] = [place for place in instances.training(2, 1).instances if place is not None]
    instances.observe(2, [group(known, "+-")], 2)
    assert known in instances.training(4, 8).instances


def test_the_environment_that_has_left_keeps_no_places_in_the_pool():
    """Small lakes, of which half of the samples succeed, fill the pool of 8 in epochs 0 to 2; then come larger ones, of
    which a quarter does: they are less learnable, and half of every epoch is drawn again from them all the same."""
    lakes = [make_env("tsr/FrozenLake-v0", size=size) for size in (4, 5)]
    instances = Instances(
        *(lakes, Key(1), HeldOut(8), lambda epoch: [1.0, 0.0] if epoch < 3 else [0.0, 1.0]),
        learnability=Learnability(0.5, 8),
    )
    seen, again = set[tuple[int, int]](), list[int]()
    for epoch in range(6):
        drawn = [place for place in instances.training(epoch, 8).instances if place is not None]
        again.append(len(seen & set(drawn)))
        seen |= set(drawn)
        instances.observe(epoch, [group(place, "+---" if place[0] else "+-+-") for place in drawn], epoch)
    assert again == [0, 4, 4, 0, 4, 4]


def test_a_share_is_as_many_as_its_decimals_say():
    """0.29 of 100 and 0.57 of 100: products of floating point lie below 29 and 57."""
    for share, count in ((0.29, 29), (0.57, 57)):
        own = Revisits(Learnability(share, 128), Key(1))
        own.observe(0, [group((0, seed), "+-") for seed in range(128)], 0, (0,))
        assert len(own.of(1, 100)) == count


def test_what_shows_no_success_rate_is_refused():
    for plan in (Uniform(Beam(), 4), Mixed([PlanEntry(Beam(), 3), PlanEntry(Sample(), 1)])):
        with pytest.raises(ConfigError, match=r"data\.learnability is 'Learnability': a success rate is that of plain"):
            Learnability().check(plan, 16)
    Learnability().check(Uniform(Sample(), 2), 2)
    with pytest.raises(ConfigError, match=r"data\.replay are those of an earlier run"):
        Learnability().check(Uniform(Sample(), 2), 16, "runs/old")
    with pytest.raises(
        ConfigError, match=r"data\.learnability\.share is 0\.2: of data\.instances 4 that is less than one"
    ):
        Learnability(share=0.2).check(Uniform(Sample(), 2), 4)
    Learnability(share=0.2).check(Uniform(Sample(), 2), 5)
    for arguments in ({"share": 0.0}, {"share": 1.0}, {"pool": 0}):
        with pytest.raises(ConfigError, match=r"Learnability\.\w+ is"):
            Learnability(**arguments)


class Recorder(Callback):
    """Keeps the instances of each epoch."""

    def __init__(self) -> None:
        self.instances: list[list[tuple[int, int]]] = []

    def on_rollout_end(self, trainer: Trainer, agent: LightningModule, groups: list[Group]) -> list[Group]:
        self.instances.append([(group.env, group.instance) for group in groups])
        return groups


CALLBACKS = (
    f'[{{"class_path": "{__name__}.Recorder"}}, {{"class_path": "ModelCheckpoint", "init_args": {{"filename": '
    '"{epoch}", "every_n_epochs": 1, "save_top_k": -1, "save_on_train_epoch_end": true}}]'
)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_resumed_run_draws_the_instances_of_the_straight_one(staleness: int, empty_folder: Path):
    def run(*resume: object) -> tuple[list[list[tuple[int, int]]], dict[str, Any]]:
        cli = tsr(
            *("fit", "--config", "sokoban.yaml", "--config", "search/sample.yaml", *QUICK, "--trainer.max_epochs", 4),
            *("--model.policy.model", TINY, "--data.env", "parity:Parity-v0", "--data.env_kwargs", "null"),
            *("--data.learnability", "{}", "--data.staleness", staleness, "--trainer.logger", "false"),
            *("--trainer.callbacks", CALLBACKS, *resume),
        )
        [record] = [callback for callback in cli.trainer.callbacks if isinstance(callback, Recorder)]
        return record.instances, {name: value.clone() for name, value in cli.model.state_dict().items()}

    straight, weights = run()
    assert any(set(earlier) & set(straight[-1]) for earlier in straight[:-1])
    [first] = empty_folder.rglob("epoch=1.ckpt")
    resumed, others = run("--ckpt_path", first)
    assert resumed == straight[2:]
    assert all(torch.equal(value, others[name]) for name, value in weights.items())
