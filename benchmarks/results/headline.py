"""The first table of docs/results.md, for a reader who knows nothing of the studies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.results.figures import points_with_interval, table
from benchmarks.results.pairs import LAYER, OBSERVED, TRIALS, PairRow, VerdictTask
from benchmarks.results.verdict import Verdict
from tsr_lightning.studies.report.comparisons import differences
from tsr_lightning.studies.report.curves import Curve, Floats
from tsr_lightning.studies.report.load import StudyResults

_TOKENS = "tokens_generated"
_EQUAL_TOKENS = 1  # the place of their column among the cells of a verdict
_HEADER = ("task", "before", "best without search", "with search", "difference", "seeds", "significant (Holm)")
_BEAM, _RAFT = "imitating the successes of a beam search", "imitating its own successes (RAFT)"
_PLAIN = {  # the words for plain recipes, by their names in the verdict
    **dict.fromkeys(("RAFT", LAYER, TRIALS), _RAFT),
    OBSERVED: "imitating its own successes and predicting observations (ECHO)",
}
WORDS = {  # what a task and its searched recipe are called, the rarest success first
    "SmolLM2, far lakes": ("a pretrained model (SmolLM2) on FrozenLake, five moves and more", _BEAM),
    "Sokoban, 8 to 10 moves, other levels": ("Sokoban, 8 to 10 moves", _BEAM),
    "Sokoban, 8 to 10 moves, after a curriculum": ("the same, after 20 epochs of easier levels", _BEAM),
    "Sokoban, 6 to 10 moves": ("Sokoban, 6 to 10 moves", _BEAM),
    "WebShop, crowded": ("WebShop, crowded shops", _BEAM),
    "FrozenLake, slippery": ("FrozenLake, slippery", "imitating successes of candidates on need"),
}


@dataclass(frozen=True)
class AtEqualTokens:
    """A searched recipe and a plain one, where both have generated as many tokens.

    Args:
        searched: the runs of the first.
        plain: those of the second.
        tokens: the least that any of them generated in all.
    """

    searched: Sequence[Curve]
    plain: Sequence[Curve]
    tokens: float

    @classmethod
    def of(cls, study: StudyResults, task: VerdictTask, row: PairRow, protocol: str) -> "AtEqualTokens":
        arms = {arm.arm: arm for arm in study.arms}
        searched, plain = (arms[name].curves(protocol, task.environment) for name in (row.arm, row.other))
        return cls(searched, plain, min(float(one.costs[_TOKENS][-1]) for one in (*searched, *plain)))

    @property
    def rates(self) -> list[float]:
        """The mean success of the plain one and of the searched one."""
        return [fmean(float(self.rate(one).mean()) for one in own) for own in (self.plain, self.searched)]

    @property
    def differences(self) -> Floats:
        """The searched one minus the plain one [S, I], paired by seed and instance."""
        found = differences(self.searched, self.plain, self.rate)
        assert found is not None
        return found

    def rate(self, one: Curve) -> Floats:
        return one.at(_TOKENS, self.tokens)


def headline_row(study: StudyResults, task: VerdictTask) -> PairRow:
    """The searched recipe of the short table minus the plain one that does best when both have generated as many
    tokens, sampled."""
    rows = [row for row in task.pairs if row.arm == task.headline]
    return max(rows, key=lambda row: AtEqualTokens.of(study, task, row, "sampled").rates[0])


def headline_table(studies: Mapping[str, StudyResults], found: Sequence[Verdict]) -> str:
    """Returns a row per task: success when sampled, at equal tokens.

    Args:
        studies: by name.
        found: all comparisons, judged together.
    """
    rows = []
    for name, words in WORDS.items():
        own = [one for one in found if one.task.name == name]
        study = studies[own[0].task.study]
        row = headline_row(study, own[0].task)
        rows.append(_row(study, next(one for one in own if one.row is row), words))
    return table(_HEADER, rows)


def _row(study: StudyResults, one: Verdict, words: tuple[str, str]) -> list[str]:
    task, searched = words
    plain = _PLAIN.get(one.row.minus, one.row.minus)
    rates = AtEqualTokens.of(study, one.task, one.row, "sampled").rates
    without, with_search = (f"{recipe}: {rate:.0%}" for recipe, rate in zip((plain, searched), rates, strict=True))
    gain = f"{points_with_interval(one.cells[_EQUAL_TOKENS][0])} points"
    holds = "yes" if one.surely[_EQUAL_TOKENS] else "no"
    return [task, f"{one.starts[0]:.0%}", without, with_search, gain, str(one.seeds), holds]
