"""The tables of where recipes end and what they cost."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from benchmarks.results.figures import rate, rates, table, thousands
from benchmarks.results.finished import PROTOCOLS, best_of, finished, last_rates, starts_of
from benchmarks.results.recipes import Block
from tsr_lightning.studies.report.load import StudyResults


def ends_table(study: StudyResults, blocks: Sequence[Block]) -> str:
    """Returns the table of recipes; the highest means are bold, of those with three seeds or more that do not learn
    from the solver.

    Args:
        study: its results.
        blocks: with more than one, each names its instances.
    """
    header = ("recipe", "seeds", *PROTOCOLS, "tokens", "seconds", "arm")
    if len(blocks) == 1:
        return table(header, _rows(study, blocks[0]))
    rows: list[Sequence[str]] = []
    for block in blocks:
        first = (block.name, "start " + ", ".join(map(rate, starts_of(study, block.recipes[0].arm, block.environment))))
        rows += [(first[i] if i < len(first) else "", *row) for i, row in enumerate(_rows(study, block))]
    return table(("levels", *header), rows)


def _rows(study: StudyResults, block: Block) -> Iterator[Sequence[str]]:
    """Yields a row for each recipe that has a finished run."""
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
            f"{seconds:.0f}" + ("" if one.recipe.alike else "*"),
            f"`{one.recipe.arm}`",
        )
