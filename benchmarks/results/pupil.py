"""The table of how near the recipes come to a pupil of the solver, the same weights taught by its demonstrations."""

from collections.abc import Mapping, Sequence

from benchmarks.results.figures import rate, table
from benchmarks.results.finished import PROTOCOLS, Finished, best_of, finished, starts_of
from benchmarks.results.recipes import Block, Kind
from tsr_lightning.studies.report.load import StudyResults

_HEADER = (
    "instances",
    "protocol",
    "start",
    "best plain",
    "best searched",
    "the solver's pupil",
    "its seeds",
    "its gain reached by",
    "arms",
)


def pupil_table(studies: Mapping[str, StudyResults], blocks: Sequence[tuple[str, Block]]) -> str:
    """Returns the table, a row per block and protocol.

    Args:
        studies: by name.
        blocks: each with its study.
    """
    return table(_HEADER, [row for study, block in blocks for row in _rows(studies[study], block)])


def _rows(study: StudyResults, block: Block) -> list[Sequence[str]]:
    found = finished(study, block)
    pupils = _of_kind(found, "solver")
    rows: list[Sequence[str]] = []
    for place, protocol in enumerate(PROTOCOLS):
        plain, searched = (best_of(_of_kind(found, kind), place) for kind in ("plain", "searched"))
        if not pupils or plain is None or searched is None:
            continue
        start = starts_of(study, found[0].recipe.arm, block.environment)[place]
        pupil, own = pupils[0].means[place], [plain.means[place], searched.means[place]]
        shares = ", ".join(f"{(mean - start) / (pupil - start):.0%}" for mean in own)
        seeds = str(len(pupils[0].curves[0]))
        arms = ", ".join(f"`{one.recipe.arm}`" for one in (plain, searched, pupils[0]))
        rows.append((block.name, protocol, rate(start), *map(rate, own), rate(pupil), seeds, shares, arms))
    return rows


def _of_kind(found: Sequence[Finished], kind: Kind) -> list[Finished]:
    return [one for one in found if one.recipe.kind == kind]
