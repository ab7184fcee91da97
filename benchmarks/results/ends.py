"""The tables of where recipes end and what they cost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.results.figures import rate, rates, thousands
from benchmarks.results.markdown import table
from benchmarks.results.rows import Block, Recipe
from tsr_lightning.studies.report.curves import Curve
from tsr_lightning.studies.report.load import StudyResults

PROTOCOLS = ("sampled", "greedy")
_ENOUGH = 3  # seeds of a recipe that may be the best


def ends_table(study: StudyResults, blocks: Sequence[Block]) -> str:
    """The highest means are bold, of recipes with three seeds or more that do not learn from the solver.

    Args:
        study: its results.
        blocks: with more than one, each names its instances.
    """
    header = ("recipe", "seeds", *PROTOCOLS, "tokens", "seconds")
    if len(blocks) == 1:
        return table(header, _rows(study, blocks[0]))
    rows: list[Sequence[str]] = []
    for block in blocks:
        first = (block.name, "start " + ", ".join(map(rate, starts_of(study, block.recipes[0].arm))))
        rows += [(first[i] if i < len(first) else "", *row) for i, row in enumerate(_rows(study, block))]
    return table(("levels", *header), rows)


def _rows(study: StudyResults, block: Block) -> Iterator[Sequence[str]]:
    """Of the recipes that have a finished run."""
    found = finished(study, block)
    best = [best_of([one for one in found if one.recipe.kind != "solver"], place) for place in range(len(PROTOCOLS))]
    for one in found:
        runs = one.curves[0]
        sampled, greedy = (rate(mean, bold=one is top) for mean, top in zip(one.means, best, strict=True))
        tokens, seconds = (fmean(run.costs[name][-1] for run in runs) for name in ("tokens_generated", "train_seconds"))
        yield (
            one.recipe.name,
            str(len(runs)),
            sampled + rates(last_rates(runs)),
            greedy,
            thousands(tokens),
            f"{seconds:.0f}" + ("" if one.recipe.one_day else "*"),
        )


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
    """The recipes that have a finished run."""
    arms = {arm.arm: arm for arm in study.arms}
    return [
        Finished(recipe, tuple(arms[recipe.arm].curves(protocol) for protocol in PROTOCOLS))
        for recipe in block.recipes
        if recipe.arm in arms
    ]


def best_of(found: Sequence[Finished], protocol: int) -> Finished | None:
    """That with the highest mean, of those with three seeds or more."""
    return max(
        (one for one in found if len(one.curves[0]) >= _ENOUGH), key=lambda one: one.means[protocol], default=None
    )


def starts_of(study: StudyResults, arm: str) -> list[float]:
    """The success at the start of the instances that an arm plays, by protocol."""
    [found] = [one for one in study.arms if one.arm == arm]
    return [float(found.curves(protocol)[0].success[0]) for protocol in PROTOCOLS]


def last_rates(curves: Sequence[Curve]) -> list[float]:
    """The success rate of each run at its end."""
    return [float(one.success[-1]) for one in curves]
