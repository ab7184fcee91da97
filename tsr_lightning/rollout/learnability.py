"""Draws instances again that the policy sometimes solves: sampling for learnability."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from tsr_lightning.errors import require
from tsr_lightning.rng import Key, Stream
from tsr_lightning.search.by_epoch import ByEpoch
from tsr_lightning.search.plan import Plan
from tsr_lightning.trajectory import Group, Origin

Place = tuple[int, int]  # an instance: the index of its environment, and its seed


@dataclass(frozen=True)
class Learnability:
    """A share of every epoch's instances is drawn again from those that were most learnable when they were last rolled
    out, by p (1 - p) with p the success rate of their plain samples (Rutherford et al. 2024,
    https://arxiv.org/abs/2408.15099). So instances that all samples solve, and those that none does, do not come again.

    Departs from the paper, which looks for learnable levels in rollouts made for that alone: here those of training
    say it, at no cost, and new instances feed the pool. prime-rl's difficulty pools sort a fixed data set so.

    Args:
        share: of an epoch's instances, as far as the pool has as many; under dynamic sampling of those of its first
            round, and further rounds draw new ones.
        pool: how many instances are remembered, whatever the run's length. Where there are more, the least learnable
            are forgotten first, of equal ones those that were rolled out longest ago. Those of an environment of a
            mixture are forgotten when its weight becomes 0.
    """

    share: float = 0.5
    pool: int = 128

    def __post_init__(self) -> None:
        remedy = "give a share between 0 and 1, such as 0.5; new instances, which feed the pool, are the rest"
        require(0 < self.share < 1, "Learnability.share", self.share, remedy)
        require(self.pool >= 1, "Learnability.pool", self.pool, "give 1 or more, such as twice data.instances")

    def check(self, plan: Plan, instances: int, replay: str | None = None) -> None:
        """Refuses a plan whose rollouts show no success rates, saved rollouts, which draw no instances, and a share of
        less than one instance.

        Args:
            plan: of the rollouts.
            instances: of an epoch, or of a round of it.
            replay: `data.replay`.
        """
        remedy = "the rollouts of data.replay are those of an earlier run, and no instance is drawn; use null"
        require(replay is None, "data.learnability", type(self).__name__, remedy)
        epochs = range(plan.constant_from + 1)
        most = max(sum(e.count for e in plan.entries(epoch) if _is_plain(e.strategy.traits.origin)) for epoch in epochs)
        remedy = (
            f"a success rate is that of plain samples, of which data.plan gives an instance {most} at most, and one is "
            "no rate; give 2 or more (--config search/sample.yaml), or use null"
        )
        require(most >= 2, "data.learnability", type(self).__name__, remedy)
        remedy = (
            f"of data.instances {instances} that is less than one, so none would be drawn again; give more of either"
        )
        require(self.count(instances) >= 1, "data.learnability.share", self.share, remedy)

    def count(self, instances: int) -> int:
        """The number of an epoch's instances that are drawn again."""
        return int(self.share * instances + 1e-9)  # 0.29 * 100 is 28.999... in floating point


class Rate(NamedTuple):
    """The success rate of an instance when it was last rolled out."""

    success: float
    epoch: int

    @property
    def learnability(self) -> float:
        return self.success * (1 - self.success)


class Revisits:
    """Chooses the instances that are drawn again, by the rollouts so far.

    Args:
        spec: how many.
        key: the run's.
    """

    def __init__(self, spec: Learnability, key: Key) -> None:
        self._spec = spec
        self._key = key
        self.reset()

    def reset(self) -> None:
        """Empties the pool, as where a run begins."""
        self._pools = ByEpoch[dict[Place, Rate]]({})  # each in the order of learnability

    def observe(self, epoch: int, groups: Sequence[Group], trained: int, envs: Container[int]) -> None:
        """Records the success rates of a rollout's instances.

        Args:
            epoch: of the rollout.
            groups: of the rollout.
            trained: epochs of updates that its policy had seen.
            envs: that the next epoch trains on; instances of others are forgotten, since none can be drawn.
        """
        sampled = {(g.env, g.instance): [t.succeeded for t in g.trajectories if _is_plain(t.origin)] for g in groups}
        rates = {place: Rate(fmean(own), epoch) for place, own in sampled.items() if len(own) > 1}
        known = {place: rate for place, rate in (self._pools.before(epoch) | rates).items() if place[0] in envs}
        self._pools.note(epoch, most_learnable(known, self._spec.pool), trained)

    def of(self, epoch: int, count: int) -> tuple[Place, ...]:
        """Those of an epoch of so many instances: different ones, drawn from the pool as the earlier epochs left it."""
        pool = list(self._pools.before(epoch))
        order = self._key.fold_in(Stream.INSTANCE, epoch, "again").generator().permutation(len(pool)).tolist()
        return tuple(pool[i] for i in order[: self._spec.count(count)])

    def state_dict(self, epochs: int) -> dict[str, Any]:
        """The pool as these epochs left it, as plain types."""
        return {"rates": [[*place, *rate] for place, rate in self._pools.before(epochs).items()]}

    def load_state_dict(self, state_dict: Mapping[str, Any], envs: Container[int]) -> None:
        """Takes up a saved pool, but for instances of environments that the mixture has no longer."""
        saved = {(env, seed): Rate(success, epoch) for env, seed, success, epoch in state_dict["rates"]}
        rates = {place: rate for place, rate in saved.items() if place[0] in envs}
        self._pools = ByEpoch(most_learnable(rates, self._spec.pool))


def most_learnable(rates: Mapping[Place, Rate], count: int) -> dict[Place, Rate]:
    """The instances with the highest p (1 - p), and none of which it is 0; of equal ones the last rolled out."""
    learnable = [(rate.learnability, rate.epoch, place) for place, rate in rates.items() if rate.learnability > 0]
    return {place: rates[place] for *_, place in sorted(learnable, reverse=True)[:count]}


def _is_plain(origin: Origin) -> bool:
    return origin is Origin.SAMPLED
