"""Held out means that no initial state of the set is trained on, by the hash of the state."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

from tsr_lightning.envs.base import Branchable, fingerprint
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.process import ProcessEnv, process_env
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key
from tsr_lightning.rollout.instances import DrawnStates, HeldOut, Instances
from tsr_lightning.search.retry import Retrying

LAKE: tuple[str, dict[str, Any]] = ("tsr/FrozenLake-v0", {"size": 4})
SMALL_LAKE: tuple[str, dict[str, Any]] = ("tsr/FrozenLake-v0", {"size": 3})
SOKOBAN: tuple[str, dict[str, Any]] = ("tsr/Sokoban-v0", {})


def instances(env: tuple[str, dict[str, Any]] = LAKE, run: int = 1, count: int = 64, seed: int = 123) -> Instances:
    name, kwargs = env
    return Instances([make_env(name, **kwargs)], Key(run), HeldOut(count, seed))


def initial(env: Branchable, seed: int) -> str:
    env.reset(seed=seed)
    return fingerprint(env.state_key())


@pytest.mark.parametrize(
    ("env", "held", "draws", "least_skipped"),
    [(LAKE, 256, 4000, 100), (SMALL_LAKE, 128, 3000, 500), (SOKOBAN, 64, 300, 0)],
    ids=["lake 4x4", "lake 3x3", "sokoban"],
)
def test_no_held_out_state_is_trained_on(
    env: tuple[str, dict[str, Any]], held: int, draws: int, least_skipped: int
) -> None:
    """By the fingerprint in a separate environment. On lakes different seeds do not suffice: many draws fell on a
    held-out lake and were skipped, each of them counted."""
    source = instances(env, count=held)
    drawn = [source.training(epoch, draws // 10) for epoch in range(10)]
    own = make_env(env[0], **env[1])
    kept = {initial(own, seed) for _, seed in source.held_out}
    trained = [initial(own, seed) for part in drawn for _, seed in part.instances]
    assert len(kept) == len(source.held_out) == held
    assert len(trained) == draws
    assert kept.isdisjoint(trained)
    assert len(set(trained)) > 0.05 * draws
    assert sum(part.skipped for part in drawn) >= least_skipped


def test_equal_keys_have_one_fingerprint_whatever_numbers_they_are_made_of() -> None:
    class Place(NamedTuple):
        row: float
        name: str

    key = (1, 2.5, "np.", True, (3, Place(0.5, "a")))
    numpy = (np.int64(1), np.float64(2.5), np.str_("np."), np.bool_(True), (np.int64(3), Place(np.float64(0.5), "a")))
    assert numpy == key
    assert fingerprint(numpy) == fingerprint(key)
    assert fingerprint((*key[:1], 2.25, *key[2:])) != fingerprint(key)


def test_seeds_are_announced_again_where_the_process_died() -> None:
    """Preparation changes nothing but time, so no failure of it ends a run."""
    env = process_env("tests.own_processes:Prepares-v0", {})
    assert isinstance(env, ProcessEnv)
    retry = Retrying(1)
    source = Instances([env], Key(1), HeldOut(2), retry=retry)
    expected = Instances([make_env("tests.own_processes:Prepares-v0")], Key(1), HeldOut(2)).training(0, 4)
    assert source.held_out
    assert env._worker is not None
    env._worker._process.kill()
    assert source.training(0, 4) == expected
    assert retry.take_costs().env_deaths == 1
    env.close()


def test_rounds_go_on_with_the_stream_of_the_epoch() -> None:
    whole = instances().training(3, 24)
    source = instances()
    rounds = [source.training(3, 8, first=first) for first in (0, 8, 16)]
    assert sum((part.instances for part in rounds), ()) == whole.instances
    assert sum(part.skipped for part in rounds) == whole.skipped


def test_only_held_out_states_are_skipped() -> None:
    """Without a held-out set the draws are the same, except those that fell on one of its states."""
    free = instances(count=0).training(0, 500)
    bound = instances(count=128)
    own = make_env(*LAKE[:1], **LAKE[1])
    kept = {initial(own, seed) for _, seed in bound.held_out}
    drawn = bound.training(0, 500)
    same = [initial(own, seed) not in kept for _, seed in free.instances]
    assert free.skipped == 0
    assert [a == b for a, b in zip(free.instances, drawn.instances, strict=True)] == same
    assert drawn.skipped >= same.count(False) > 10


def test_instances_are_a_pure_function_of_key_and_epoch() -> None:
    """In any order and on every call; a longer epoch begins with the shorter one's."""
    one, other = instances(), instances()
    forward = [one.training(epoch, 30) for epoch in range(4)]
    assert [other.training(epoch, 30) for epoch in reversed(range(4))] == forward[::-1]
    assert one.training(2, 30) == forward[2]
    assert one.training(2, 10).instances == forward[2].instances[:10]
    assert len({part.instances for part in forward}) == 4
    assert instances(run=2).training(0, 30) != forward[0]


def test_the_held_out_set_does_not_depend_on_the_run() -> None:
    """It depends on its own seed and on no run's; a larger set begins with the smaller."""
    held = instances(run=1).held_out
    assert instances(run=2).held_out == held
    assert instances(seed=124).held_out != held
    assert instances(count=16).held_out == held[:16]


@pytest.mark.parametrize(
    ("count", "sentence"),
    [
        (2, "data.held_out.instances is 2: only 1 different initial states were found, so hold out fewer"),
        (1, "data.held_out.instances is 1: no initial state is left for training, so hold out fewer"),
    ],
)
def test_too_few_initial_states_are_refused(count: int, sentence: str) -> None:
    """A lake given by `desc` has one initial state: it cannot be held out twice, nor held out and trained on."""
    fixed = instances(("tsr/FrozenLake-v0", {"desc": ["SF", "FG"]}), count=count)
    with pytest.raises(ConfigError, match=sentence):
        fixed.training(0, 1)


def test_without_held_out_instances_a_fixed_lake_is_trained_on() -> None:
    drawn = instances(("tsr/FrozenLake-v0", {"desc": ["SF", "FG"]}), count=0).training(0, 5)
    assert (len(drawn.instances), drawn.skipped) == (5, 0)


def test_the_summary_counts_held_out_trained_and_skipped() -> None:
    env = make_env("tsr/FrozenLake-v0", size=3)
    instances = Instances([env], Key(5), HeldOut(20))
    skipped = sum(instances.training(epoch, 50).skipped for epoch in range(4))
    assert skipped > 0
    summary = instances.summary
    assert summary.startswith(
        "instances: 20 held out, all of different initial states; 200 rolled out for training, of "
    )
    assert summary.endswith(f" 0 of them held out ({skipped} draws fell on held-out states and were drawn again)")


def test_a_resumed_run_counts_what_the_whole_run_drew() -> None:
    """From a checkpoint after two epochs, while the third was drawn ahead: that one is drawn again."""
    whole, first, second = (instances(SMALL_LAKE, count=20) for _ in range(3))
    for epoch in range(4):
        whole.training(epoch, 50)
    for epoch in range(3):
        first.training(epoch, 50)
    second.load_state_dict(json.loads(json.dumps(first.state_dict(2))))  # plain types
    for epoch in (2, 3, 3):  # the last is collected again, as after a restored policy
        second.training(epoch, 50)
    assert "200 rolled out for training" in whole.summary
    assert second.summary == whole.summary


def test_a_checkpoint_counts_states_while_a_rollout_ahead_draws_more() -> None:
    """A thread draws the instances of later epochs, as with data.staleness, while those of the first 300 are counted
    again and again."""
    drawn = DrawnStates()

    def draw(epochs: range) -> None:
        for epoch in epochs:
            for place in range(16):
                drawn.add(epoch, place, (0, f"{16 * epoch + place:032x}"), 1)

    draw(range(300))
    with ThreadPoolExecutor(1) as thread:
        ahead = thread.submit(draw, range(300, 3000))
        counted = [drawn.state_dict(300)]
        while not ahead.done():
            counted.append(drawn.state_dict(300))
    assert {(state["instances"], state["skipped"]) for state in counted} == {(4_800, 4_800)}
    assert drawn.counts().instances == 48_000
