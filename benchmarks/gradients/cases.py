"""The kinds of credit that are measured, each with the search whose trajectories it is given."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gradients.enumeration import Outcome
from benchmarks.gradients.estimates import GroupOutcome, World
from benchmarks.gradients.task import Rules
from tsr_lightning.objectives import (
    GRPO,
    PPO,
    RAFT,
    RLOO,
    Constant,
    DrGRPO,
    ExponentialWeights,
    GraphCredit,
    GreedyBaseline,
    GroupNormalised,
    ImprovedPolicy,
    LeaveOneOut,
    MaxBackup,
    MeanBackup,
    Objective,
    OptimalBaseline,
    PolicyGradient,
    SearchedCredit,
    TreeCredit,
)
from tsr_lightning.objectives.backups import Backup
from tsr_lightning.search import (
    AdaptiveTree,
    Beam,
    BestOfN,
    ContrastBeam,
    EntropyExpansion,
    EntropyRise,
    FirstImprovement,
    Lookahead,
    Sample,
    Strategy,
    SuffixRestarts,
    Vine,
)
from tsr_lightning.search.scorers import EnvironmentScore

TASKS = {"no noise": Rules(goal=4, turns=3), "slip": Rules(goal=3, turns=2, slip=0.25)}
PLAIN = 4  # trajectories of a group without trees
SEARCHES: Mapping[str, Strategy] = {
    "plain samples": Sample(),
    "vine": Vine(candidates=2),
    "beam": Beam(width=2, candidates=2),
    "contrast beam": ContrastBeam(width=1, candidates=2, contrast=1, rollouts=4),  # all that are pruned
    "beam, suffix restarts": SuffixRestarts(Beam(width=2, candidates=2), points=1, rollouts=2),
    "lookahead": Lookahead(candidates=2, depth=1, width=1),
    "best of 3": BestOfN(3),
    "entropy expansion": EntropyExpansion(samples=1, rounds=1, points=3),
    "entropy rise": EntropyRise(samples=2, total=4),
    "adaptive tree": AdaptiveTree(samples=2, every=1, expanded=1, margin=0.25, scorer=EnvironmentScore()),
    "first improvement": FirstImprovement(candidates=2, without_replacement=False),
}
BESIDE_GREEDY = "a plain sample beside greedy play"
SUM = Constant(1)  # the sum over a trajectory's tokens, without a division by its length


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    credit: str
    search: str  # a key of SEARCHES, or BESIDE_GREEDY
    objective: Objective
    target: str  # of what it is the gradient
    tree: bool = False  # groups of one search with its tree, instead of PLAIN trajectories
    exact_score: bool = False  # the search's score is the policy's exact value
    whole_key: bool = False  # the turns left are a part of the state key


def compared(searched: SearchedCredit) -> PolicyGradient:
    """Leave-one-out, summed over tokens."""
    return PolicyGradient(LeaveOneOut(), aggregation=SUM, searched=searched, entropy_coefficient=0.0)


def _tree(backup: Backup, search: str, target: str, size_power: float = 0.0) -> Case:
    name = f"tree credit, {type(backup).__name__}"
    return Case(
        name + (f", size_power {size_power:g}" if size_power else ""),
        search,
        compared(TreeCredit(backup, size_power=size_power)),
        target,
        tree=True,
    )


def _graph(backup: Backup, search: str, target: str, whole_key: bool) -> Case:
    name = f"graph credit, {type(backup).__name__}" + (", budget in the state key" if whole_key else "")
    objective = compared(GraphCredit(backup, size_power=0.0))
    found = "the best return that was found"
    return Case(
        name,
        search,
        objective,
        found if backup.takes_best else target,
        tree=search != "plain samples",
        whole_key=whole_key,
    )


MEAN, MAX = MeanBackup(), MaxBackup()
RETURN, LENGTH = "the return", "the return, states of short episodes weighed more"
FREE: Mapping[str, Any] = {"entropy_coefficient": 0.0}
OFF_PATH = "the return, in the states that the search visits"
PART = "the return, in the first state alone"
GRAPHS = {
    "plain samples": "the return, where samples meet",
    "vine": "the return, where responses meet",
    "beam": "the return, half guessed by the score",
}
CASES = [
    Case("RLOO, summed (`Constant`)", "plain samples", RLOO(aggregation=SUM, **FREE), RETURN),
    Case("Dr. GRPO", "plain samples", DrGRPO(**FREE), RETURN),
    Case("PPO, exact critic, not whitened", "plain samples", PPO(whiten=False, **FREE), RETURN),
    Case("ReMax, summed", BESIDE_GREEDY, PolicyGradient(GreedyBaseline(), aggregation=SUM, **FREE), RETURN),
    Case(
        "OPO, summed",
        "plain samples",
        PolicyGradient(OptimalBaseline(), aggregation=SUM, **FREE),
        "the return, long episodes weighed less",
    ),
    Case("RLOO as shipped (`SequenceMean`)", "plain samples", RLOO(**FREE), LENGTH),
    Case("GRPO, summed", "plain samples", GRPO(aggregation=SUM, **FREE), "the return, rare outcomes weighed more"),
    Case("GRPO as shipped", "plain samples", GRPO(**FREE), "both of the above"),
    Case("successes alone (RAFT), summed", "plain samples", RAFT(aggregation=SUM, **FREE), "log P(success)"),
    *(
        Case("successes alone, summed", search, RAFT(aggregation=SUM, **FREE), "the likelihood of its successes")
        for search in ("best of 3", "beam", "lookahead", "first improvement")
    ),
    *(
        Case("`Unchanged` (the paper's), GRPO", search, GRPO(**FREE), "the likelihood of its trajectories, centred")
        for search in ("best of 3", "beam", "lookahead", "first improvement")
    ),
    _tree(MEAN, "vine", RETURN),
    Case(
        "tree credit, MeanBackup, PPO with exact critic",
        "vine",
        PPO(whiten=False, searched=TreeCredit(MEAN, size_power=0.0), **FREE),
        RETURN,
        tree=True,
    ),
    Case(
        "tree credit, MeanBackup, mean-centred",
        "vine",
        PolicyGradient(
            GroupNormalised(divide_by_std=False), aggregation=SUM, searched=TreeCredit(MEAN, size_power=0.0), **FREE
        ),
        "the return, states with more responses weighed more",
        tree=True,
    ),
    _tree(MEAN, "vine", LENGTH, size_power=1.0),
    _tree(MAX, "vine", "the best return that was found"),
    Case(
        "tree credit, MeanBackup, exact score",
        "beam",
        compared(TreeCredit(MeanBackup(score_share=1.0), size_power=0.0)),
        OFF_PATH,
        tree=True,
        exact_score=True,
    ),
    _tree(MEAN, "beam", "the return, half guessed by the score"),
    _tree(MAX, "beam", "the best return that was found"),
    Case(
        "tree credit as shipped (GRPO, MaxBackup)",
        "beam",
        GRPO(searched=TreeCredit(), **FREE),
        "the best return that was found",
        tree=True,
    ),
    _tree(MEAN, "contrast beam", "the return, half guessed by the score"),
    _tree(MAX, "contrast beam", "the best return that was found"),
    _tree(MEAN, "beam, suffix restarts", "the return, half guessed by the score"),
    _tree(MAX, "beam, suffix restarts", "the best return that was found"),
    _tree(MEAN, "entropy expansion", "the return, in the states of which the policy is unsure"),
    _tree(MEAN, "entropy rise", "the return, in the states that come as a surprise"),
    _tree(MEAN, "adaptive tree", "the return, half guessed by the score"),
    _tree(MAX, "adaptive tree", "the best return that was found"),
    _tree(MEAN, "lookahead", "the return, half guessed by the score"),
    _tree(MAX, "lookahead", "the best return that was found"),
    _tree(MEAN, "best of 3", PART),
    _tree(MAX, "best of 3", "the best return that was found, in the first state alone"),
    *(
        Case(
            f"tree credit, {type(backup).__name__}, {type(target).__name__}",
            search,
            PolicyGradient(
                GroupNormalised(divide_by_std=False),
                aggregation=SUM,
                searched=TreeCredit(backup, size_power=0.0, target=target),
                **FREE,
            ),
            "the return, bent by the softmax"
            if backup is MEAN
            else "the best return that was found, bent by the softmax",
            tree=True,
        )
        for backup, search, found in ((MEAN, "vine", "the return"), (MAX, "beam", "the best return that was found"))
        for target in (ImprovedPolicy(1.0), ExponentialWeights(1.0))
    ),
    Case(
        "graph credit, MeanBackup, PPO with exact critic, budget in the state key",
        "plain samples",
        PPO(whiten=False, searched=GraphCredit(MEAN, size_power=0.0), **FREE),
        RETURN,
        whole_key=True,
    ),
    *(
        _graph(backup, search, target, whole_key)
        for search, target in GRAPHS.items()
        for backup in (MEAN, MAX)
        for whole_key in (True, False)
        if backup is MEAN or not whole_key
    ),
]
GROWN = ("entropy expansion", "entropy rise", "adaptive tree")
IN_STEPS = [
    case
    for case in CASES
    if case.target == RETURN
    or case.search in GROWN
    or case.credit.startswith(("graph credit", "OPO"))
    or case.credit.endswith(("Policy", "Weights"))
]


class Rollouts:
    """The outcomes of the searches of a task, each enumerated once."""

    def __init__(self, rules: Rules) -> None:
        self.world = World(rules)
        self._known: dict[tuple[str, bool, bool, bool], list[Outcome[GroupOutcome]]] = {}

    def of(self, case: Case) -> list[Outcome[GroupOutcome]]:
        key = case.search, case.tree, case.exact_score, case.whole_key
        if case.search == BESIDE_GREEDY:
            return self.world.beside_greedy()
        if key not in self._known:
            strategy = SEARCHES[case.search]
            self._known[key] = (
                self.world.single(strategy, exact_score=case.exact_score, whole_key=case.whole_key)
                if case.tree
                else self.world.groups(strategy, PLAIN, whole_key=case.whole_key)
            )
        return self._known[key]
