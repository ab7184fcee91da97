"""The estimate of FSDP2 beside two ranks that train on a CPU, byte by byte."""

from pathlib import Path

import pytest
from shard_probe import PACKED, RANKS, Held, measured, odd_model, spec_of
from small_models import size_of

from tsr_lightning.estimate.activations import Activations
from tsr_lightning.estimate.cards import machine_of
from tsr_lightning.estimate.hours import collective_seconds, traffic
from tsr_lightning.estimate.shape import shape_of
from tsr_lightning.estimate.sharded import Shards, largest
from tsr_lightning.estimate.units import Parameter, Unit, Units, shard_bytes, trained_shard_bytes, units_of
from tsr_lightning.policy.model_files import load_config

KINDS = ("all weights, float32", "all weights, bfloat16", "adapter, float32", "adapter, bfloat16")


def test_a_parameter_is_cut_along_its_first_dimension():
    """Five rows on four ranks are pieces of two rows, as `torch.chunk` cuts them; the fourth is empty and has room."""
    weight, vector = Parameter(5, 3, 2, True), Parameter(1, 1, 4, False)
    assert [weight.shard_bytes(ranks) for ranks in (1, 4, 8)] == [30, 2 * 3 * 2, 1 * 3 * 2]
    unit = Unit((weight, vector))
    assert (unit.shard_bytes(4), unit.gathered_bytes(4), unit.trained.shard_bytes(4)) == (16, 64, 12)


def test_collectives_move_all_but_a_rank_s_own_part():
    assert collective_seconds(8e9, machine_of("8xa100")) == pytest.approx(7e9 / (0.7 * 300e9))
    assert collective_seconds(8e9, machine_of("a100")) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return odd_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, list[Held]]:
    return measured(folder, KINDS)


def units_in(folder: Path, kind: str) -> Units:
    shape = shape_of(load_config(str(folder)))
    return units_of(shape, spec_of(folder, kind), has_critic=True, keeps_reference=True)


@pytest.mark.exhaustive
@pytest.mark.xdist_group("estimate_sharded")  # of parallel workers one starts the ranks
class TestTwoRanks:
    @pytest.mark.parametrize("kind", KINDS)
    def test_hold_what_was_estimated(self, kind: str, folder: Path, found: dict[str, list[Held]]):
        """Exactly. Averages have no rows to fill them up, so that those of the last rank are smaller."""
        units, ranks = units_in(folder, kind), found[kind]
        trained = trained_shard_bytes(units.passes, RANKS)
        for rank in ranks:
            assert rank.weights == shard_bytes(units.all, RANKS)
            assert rank.gradients == trained
            assert rank.whole == sum(size for _, size in Shards(units, RANKS).whole)
            assert rank.released == 0
        first, second = ranks
        assert first.averages == 2 * trained > second.averages
        assert first.averages + second.averages == 2 * trained_shard_bytes(units.passes, 1)
        parts = dict(Shards(units, RANKS).resident("float32"))
        assert sum(parts.values()) == first.weights + first.gradients + first.averages

    @pytest.mark.parametrize("kind", KINDS)
    def test_send_what_was_estimated(self, kind: str, folder: Path, found: dict[str, list[Held]]):
        of_pass = traffic(units_in(folder, kind), RANKS)
        for rank in found[kind]:
            assert rank.sent == {
                "allgather": of_pass.forward + of_pass.backward,
                "reduce_scatter": of_pass.gradients,
                "whole": of_pass.whole,
            }

    @pytest.mark.parametrize("kind", KINDS)
    def test_have_the_peak_that_was_estimated(self, kind: str, folder: Path, found: dict[str, list[Held]]):
        shards = Shards(units_in(folder, kind), RANKS)
        size, activations = size_of(PACKED), Activations(shape_of(load_config(str(folder))), spec_of(folder, kind))
        saved = ("saved", activations.saved(size))
        logits, working = ("logits", activations.logits(size)), ("working", activations.working(size))
        moments = (shards.begin, (saved, logits, *shards.scoring), (saved, working, *shards.layer), shards.end)
        expected = sum(size for _, size in (*shards.resident("float32"), *largest(moments)))
        assert 0.85 < found[kind][0].peak / expected < 1.05
