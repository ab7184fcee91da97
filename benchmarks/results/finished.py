"""The recipes that have finished runs, and where these start and end."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.results.recipes import Block, Recipe
from tsr_lightning.studies.report.curves import Curve
from tsr_lightning.studies.report.load import StudyResults

PROTOCOLS = ("sampled", "greedy")
_ENOUGH = 3  # seeds of a recipe that may be the best


@dataclass(frozen=True)
class Finished:
    """A recipe with its runs."""

    recipe: Recipe
    curves: tuple[Sequence[Curve], ...]  # by protocol

    @property
    def means(self) -> list[float]:
        """Where its seeds end, by protocol."""
        return [fmean(last_rates(own)) for own in self.curves]


def finished(study: StudyResults, block: Block) -> list[Finished]:
    """Returns the recipes that have a finished run."""
    arms = {arm.arm: arm for arm in study.arms}
    return [
        Finished(recipe, tuple(arms[recipe.arm].curves(protocol, block.environment) for protocol in PROTOCOLS))
        for recipe in block.recipes
        if recipe.arm in arms
    ]


def best_of(found: Sequence[Finished], protocol: int) -> Finished | None:
    """Returns the recipe with the highest mean, of those with three seeds or more."""
    return max(
        (one for one in found if len(one.curves[0]) >= _ENOUGH), key=lambda one: one.means[protocol], default=None
    )


def starts_of(study: StudyResults, arm: str, environment: str) -> list[float]:
    """Returns the success at the start by protocol, on all instances of an arm or on those of one environment."""
    [found] = [one for one in study.arms if one.arm == arm]
    return [float(found.curves(protocol, environment)[0].success[0]) for protocol in PROTOCOLS]


def last_rates(curves: Sequence[Curve]) -> list[float]:
    """Returns the success rate of each run at its end."""
    return [float(one.success[-1]) for one in curves]
