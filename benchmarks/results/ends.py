"""The tables of where recipes end and what they cost."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from benchmarks.results.figures import rate, rates, table, thousands
from benchmarks.results.finished import PROTOCOLS, best_of, finished, last_rates, starts_of
from benchmarks.results.recipes import Block
from tsr_lightning.studies.report.load import ArmResults, StudyResults

_EIGHT = "eight"  # the protocol of pass@8: eight samples of every instance


def ends_table(study: StudyResults, blocks: Sequence[Block]) -> str:
    """Returns the table of recipes; the highest means are bold, of those with three seeds or more that do not learn
    from the solver.

    Args:
        study: its results. Where it was evaluated by eight samples of an instance, a column has pass@8.
        blocks: with more than one, each names its instances; one without a finished run is left out.
    """
    header = ("recipe", "seeds", *PROTOCOLS, *(["pass@8"] if _has_eight(study) else []), "tokens", "seconds", "arm")
    if len(blocks) == 1:
        return table(header, _rows(study, blocks[0]))
    rows: list[Sequence[str]] = []
    for block in blocks:
        for place, row in enumerate(_rows(study, block)):
            first = (block.name, _start(study, block))
            rows.append((first[place] if place < len(first) else "", *row))
    return table(("levels", *header), rows)


def _start(study: StudyResults, block: Block) -> str:
    """Returns the success at the start, by protocol."""
    known = {arm.arm: arm for arm in study.arms}
    arm = next(known[recipe.arm] for recipe in block.recipes if recipe.arm in known)
    start = "start " + ", ".join(map(rate, starts_of(study, arm.arm, block.environment)))
    return start + f"; pass@8 {rate(_solved_of_eight(arm, 0))}" if _EIGHT in arm.protocols else start


def _has_eight(study: StudyResults) -> bool:
    return any(_EIGHT in arm.protocols for arm in study.arms)


def _solved_of_eight(arm: ArmResults, evaluation: int) -> float:
    """Returns the mean share of the instances that eight samples solve at least once."""
    return fmean(float((one.rates[evaluation] > 0).mean()) for one in arm.curves(_EIGHT))


def _rows(study: StudyResults, block: Block) -> Iterator[Sequence[str]]:
    """Yields a row for each recipe that has a finished run."""
    found = finished(study, block)
    arms = {arm.arm: arm for arm in study.arms}
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
            *([rate(_solved_of_eight(arms[one.recipe.arm], -1))] if _has_eight(study) else []),
            thousands(tokens),
            f"{seconds:.0f}" + ("" if one.recipe.alike else "*"),
            f"`{one.recipe.arm}`",
        )
