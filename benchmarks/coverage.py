"""Coverage of the verdict's confidence intervals, simulated at the spreads of the real runs, as published in
docs/studies.md: `python -m benchmarks.coverage`.

Each comparison with the best plain recipe is a matrix of differences, seeds by instances. New studies are drawn from
its effects of seeds, of instances and of the rest, with a true difference of 0; the interval and the p-value of each
are asked.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.results.figures import table
from benchmarks.results.finished import PROTOCOLS
from benchmarks.results.headline import AtEqualTokens, headline_row
from benchmarks.results.page import load_studies
from benchmarks.results.pairs import TASKS
from tsr_lightning.statistics import Floats, crossed_effects, mean_difference

Draw = Callable[[Floats, float, tuple[int, int]], Floats]  # effects of a pool, of a spread, in a shape
_RARE, _TAIL = 0.001, 20  # a p-value as Holm's procedure asks for; studies for it, for each of the others
HEADER = ("task", "protocol", "seeds", "spread of seeds", "of instances", "of the rest")


@dataclass(frozen=True)
class Effects:
    """Variance components of a study's differences.

    Args:
        pools: of the effects of seeds [S, 1], of instances [1, I] and of the rest [S, I], as they were found.
        spreads: the square roots of their components of variance.
    """

    pools: tuple[Floats, Floats, Floats]
    spreads: tuple[float, float, float]

    @classmethod
    def of(cls, values: Floats) -> "Effects":
        """Estimated by a two-way analysis of variance; negative components count as 0."""
        seeds, instances = values.shape
        pools = crossed_effects(values)
        by_seed, by_instance, rest = (float((pool**2).sum()) for pool in pools)
        noise = rest / ((seeds - 1) * (instances - 1))
        of_seeds = max(0.0, by_seed / (seeds - 1) - noise / instances)
        of_instances = max(0.0, by_instance / (instances - 1) - noise / seeds)
        return cls(pools, (of_seeds**0.5, of_instances**0.5, noise**0.5))

    def draw(self, draw: Draw, seeds: int) -> Floats:
        """The differences [S, I] of a new study, whose true mean is 0."""
        instances = self.pools[1].size
        shapes = ((seeds, 1), (1, instances), (seeds, instances))
        parts = [
            draw(pool, spread, shape) for pool, spread, shape in zip(self.pools, self.spreads, shapes, strict=True)
        ]
        return parts[0] + parts[1] + parts[2]


def normal(rng: np.random.Generator) -> Draw:
    """Effects that are normal."""
    return lambda pool, spread, shape: spread * rng.standard_normal(shape)


def resampled(rng: np.random.Generator) -> Draw:
    """Effects drawn from those that were found, whose size they are given."""

    def draw(pool: Floats, spread: float, shape: tuple[int, int]) -> Floats:
        size = float(np.sqrt((pool**2).mean()))
        return rng.choice(pool.ravel(), shape) * (spread / size if size else 0.0)

    return draw


def coverage(effects: Effects, draw: Draw, seeds: int, studies: int) -> float:
    """The share of simulated studies whose interval contains 0."""
    found = [mean_difference(effects.draw(draw, seeds)) for _ in range(studies)]
    return sum(one.low <= 0 <= one.high for one in found) / studies


def small_p_values(effects: Effects, draw: Draw, seeds: int, studies: int) -> float:
    """The share of simulated studies with a p-value below 0.001, divided by 0.001; at most 1 if p-values are right."""
    found = sum(mean_difference(effects.draw(draw, seeds)).p_value < _RARE for _ in range(studies))
    return found / (_RARE * studies)


def rows(studies: int) -> Iterator[list[str]]:
    """One of each headline comparison and protocol."""
    results = load_studies()
    for task in (task for task in TASKS if task.headline):
        study = results[task.study]
        for protocol in PROTOCOLS:
            values = AtEqualTokens.of(study, task, headline_row(study, task), protocol).differences
            effects, rng = Effects.of(values), np.random.default_rng(0)
            spreads = [f"{100 * spread:.1f}" for spread in effects.spreads]
            kinds = ((normal, 5), (resampled, 5), (resampled, 3))
            covered = [f"{coverage(effects, kind(rng), seeds, studies):.1%}" for kind, seeds in kinds]
            rare = [small_p_values(effects, normal(rng), seeds, _TAIL * studies) for seeds in (5, 3)]
            yield [task.name, protocol, str(len(values)), *spreads, *covered, *(f"{times:.1f}" for times in rare)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("--studies", type=int, default=1000, help="that are drawn for each figure")
    args = parser.parse_args()
    rare = [f"p < .001, times as often as it should be, {seeds} seeds" for seeds in (5, 3)]
    columns = ("5 seeds, normal", "5 seeds, resampled", "3 seeds, resampled", *rare)
    print(table((*HEADER, *columns), rows(args.studies)))


if __name__ == "__main__":
    main()
