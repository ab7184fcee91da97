"""The tables of where recipes end and what they cost."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from benchmarks.results.figures import rate, rates, thousands
from benchmarks.results.markdown import table
from benchmarks.results.rows import Block
from tsr_lightning.studies.report.curves import Curve
from tsr_lightning.studies.report.load import ArmResults, StudyResults

_PROTOCOLS = ("sampled", "greedy")
_ENOUGH = 3  # seeds of a recipe that may be the best


def ends_table(study: StudyResults, blocks: Sequence[Block]) -> str:
    """The highest means are bold, of recipes with three seeds or more that do not learn from the solver.

    Args:
        study: its results.
        blocks: with more than one, each names its instances.
    """
    arms = {arm.arm: arm for arm in study.arms}
    header = ("recipe", "seeds", *_PROTOCOLS, "tokens", "seconds")
    if len(blocks) == 1:
        return table(header, _rows(arms, blocks[0]))
    rows: list[Sequence[str]] = []
    for block in blocks:
        names = (block.levels, block.start)
        of_block = enumerate(_rows(arms, block))
        rows += [(names[number] if number < len(names) else "", *row) for number, row in of_block]
    return table(("levels", *header), rows)


def _rows(arms: Mapping[str, ArmResults], block: Block) -> Iterator[Sequence[str]]:
    """Of the recipes that have a finished run; the highest means of those that may be the best are bold."""
    shown = [recipe for recipe in block.recipes if recipe.arm in arms]
    curves = {recipe: [arms[recipe.arm].curves(protocol) for protocol in _PROTOCOLS] for recipe in shown}
    means = {recipe: [fmean(last_rates(own)) for own in curves[recipe]] for recipe in shown}
    rivals = [means[recipe] for recipe in shown if len(curves[recipe][0]) >= _ENOUGH and not recipe.is_ceiling]
    best = [max(column) for column in zip(*rivals, strict=True)]
    for recipe in shown:
        may_be_bold = means[recipe] in rivals
        sampled, greedy = (
            rate(mean, bold=may_be_bold and mean == top) for mean, top in zip(means[recipe], best, strict=True)
        )
        runs = curves[recipe][0]
        tokens, seconds = (fmean(one.costs[name][-1] for one in runs) for name in ("tokens_generated", "train_seconds"))
        yield (
            recipe.name,
            str(len(runs)),
            sampled + rates(last_rates(runs)),
            greedy,
            thousands(tokens),
            f"{seconds:.0f}" + ("" if recipe.one_day else "*"),
        )


def last_rates(curves: Sequence[Curve]) -> list[float]:
    """The success rate of each run at its end."""
    return [float(one.success[-1]) for one in curves]
