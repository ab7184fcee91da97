"""Which recipes are compared with which plain ones. No figures."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PairRow:
    """A searched recipe, or a further idea, minus a plain one.

    Args:
        arm: the first.
        other: the second, a plain one.
        under: the objective of the first.
        minus: what the second is called.
        alike: True if their seconds were measured under like conditions; else they are not compared.
    """

    arm: str
    other: str
    under: str
    minus: str
    alike: bool = True


@dataclass(frozen=True)
class VerdictTask:
    """The rows of a task in the table of verdicts.

    Args:
        study: whose results.
        name: of the task.
        aim: success rate ahead of the plain recipe, set before the runs.
        pairs: its rows.
        environment: the name of one of a mixture, whose instances alone are counted; empty: all instances.
        headline: the searched arm that also stands in the short table, under GRPO; empty for none.
    """

    study: str
    name: str
    aim: float
    pairs: Sequence[PairRow]
    environment: str = ""
    headline: str = ""


def _sokoban_pairs(levels: str, raft_alike: bool, plain_alike: bool, raft: str = "raft") -> list[PairRow]:
    return [
        PairRow(f"{levels}-imitate", f"{levels}-{raft}", "GRPO", "RAFT", raft_alike),
        PairRow(f"{levels}-ppo-imitate", f"{levels}-{raft}", "PPO", "RAFT", raft_alike),
        PairRow(f"{levels}-imitate", f"{levels}-grpo", "GRPO", "plain GRPO", plain_alike),
        PairRow(f"{levels}-ppo-imitate", f"{levels}-ppo", "PPO", "plain PPO", plain_alike),
    ]


def _paper(levels: str) -> PairRow:
    """The paper's recipe, which credits searches as if they were samples, as its own trials chose it."""
    return PairRow(f"{levels}-paper-4-updates", f"{levels}-raft", "GRPO, the paper's", "RAFT", alike=False)


_BETTER_RAFT = "raft-2.5e-4"  # later trials found a better step size from 6 moves, and after a curriculum
_SHOPS_RAFT, _SHOPS_IMITATE = "raft-2.5e-4-4-updates", "imitate-5e-4-4-updates"  # likewise in crowded shops
LAYER, TRIALS = "RAFT at the layer's step size", "RAFT at the step size of its trials"
OBSERVED = "RAFT, observations as targets beside"

_UNSURE = "GRPO, trees that branch where the policy is unsure"
_RANDOM_PLAY = "GRPO, random play as the score"
_GRAPH = "GRPO, credit on the graph of states"
_LEARNABLE = "plain GRPO, learnable levels"

_IDEAS = {  # each with the best of its four trials, on levels from 4 moves
    "expansion-4-updates": _UNSURE,
    "rise": "GRPO, trees that branch where it became less sure",
    "weights": "Dr. GRPO, a distribution over candidates as the target",
    "target-4-updates": "Dr. GRPO, the same by log-probabilities",
    "process": "GRPO, branches where a learned score promises most",
    "graph-sample": "GRPO, credit on the graph of plain samples' states",
    "graph-ppo": "PPO, the same",
    "learnable": _LEARNABLE,
}

_IDEAS_FROM_SIX = {  # likewise, those that have seeds from 6 moves
    "rollouts-4-updates": _RANDOM_PLAY,
    "ppo-rollouts-4-updates": "PPO, the same",
    "graph-5e-4": _GRAPH,
    "expansion": _UNSURE,
    "learnable-4-updates": _LEARNABLE,
    "observations": OBSERVED,
}

TASKS = [
    VerdictTask(
        "sokoban_search",
        "Sokoban, 8 to 10 moves",
        0.08,
        [
            PairRow("longest-imitate-distinct", "longest-raft", "GRPO, responses that differ", "RAFT", alike=False),
            *_sokoban_pairs("longest", raft_alike=False, plain_alike=False),
            _paper("longest"),
        ],
    ),
    VerdictTask(
        "sokoban_search",
        "Sokoban, 6 to 10 moves",
        0.08,
        [
            *_sokoban_pairs("rare", False, False, raft=_BETTER_RAFT),
            *(
                PairRow(f"rare-{arm}", f"rare-{_BETTER_RAFT}", under, "RAFT", alike=False)
                for arm, under in _IDEAS_FROM_SIX.items()
            ),
        ],
        headline="rare-imitate",
    ),
    VerdictTask(
        "sokoban_search",
        "Sokoban, 4 to 10 moves",
        0.08,
        [
            PairRow("hard-imitate", "hard-observations", "GRPO", OBSERVED, alike=False),
            *_sokoban_pairs("hard", True, False),
            _paper("hard"),
            *(PairRow(f"hard-{arm}", "hard-raft", under, "RAFT", alike=False) for arm, under in _IDEAS.items()),
        ],
        headline="hard-imitate",
    ),
    VerdictTask(
        "sokoban_seconds",
        "Sokoban, 4 to 10 moves, in turns",
        0.08,
        [
            PairRow("rollouts", "raft", _RANDOM_PLAY, "RAFT"),
            PairRow("graph", "raft", _GRAPH, "RAFT"),
        ],
    ),
    VerdictTask(
        "sokoban_search",
        "Sokoban, 2 to 10 moves",
        0.08,
        _sokoban_pairs("default", True, True),
        headline="default-imitate",
    ),
    VerdictTask(
        "sokoban_curriculum",
        "Sokoban, 8 to 10 moves, other levels",
        0.08,
        [
            PairRow("longest-imitate", "longest-raft", "GRPO", "RAFT"),
            PairRow("longest-tree", "longest-raft", "GRPO, tree credit", "RAFT", alike=False),
        ],
        environment="longest",
        headline="longest-imitate",
    ),
    VerdictTask(
        "sokoban_curriculum",
        "Sokoban, 8 to 10 moves, after a curriculum",
        0.08,
        [
            PairRow("curriculum-imitate", f"curriculum-{_BETTER_RAFT}", "GRPO", "RAFT"),
            PairRow(
                "curriculum-rollouts-4-updates",
                f"curriculum-{_BETTER_RAFT}",
                _RANDOM_PLAY,
                "RAFT",
            ),
            PairRow(
                "curriculum-graph-5e-4",
                f"curriculum-{_BETTER_RAFT}",
                _GRAPH,
                "RAFT",
                alike=False,
            ),
            PairRow("curriculum-observations", f"curriculum-{_BETTER_RAFT}", OBSERVED, "RAFT", alike=False),
            PairRow("curriculum-ppo-imitate", f"curriculum-{_BETTER_RAFT}", "PPO", "RAFT", alike=False),
            PairRow("curriculum-imitate", "curriculum-grpo", "GRPO", "plain GRPO", alike=False),
            PairRow("curriculum-ppo-imitate", "curriculum-ppo", "PPO", "plain PPO", alike=False),
        ],
        environment="longest",
        headline="curriculum-imitate",
    ),
    VerdictTask(
        "frozen_lake_search",
        "FrozenLake, slippery",
        0.12,
        [
            PairRow("first-improvement", "grpo", "GRPO", "plain GRPO"),
            PairRow("first-improvement", "ppo-4-updates", "GRPO", "plain PPO, four updates", alike=False),
            PairRow("ppo-first-improvement", "ppo-4-updates", "PPO", "plain PPO, four updates", alike=False),
            PairRow("ppo-first-improvement", "ppo-8-updates", "PPO", "plain PPO, eight updates", alike=False),
            PairRow("imitate-keep", "grpo", "GRPO, beam 1 of 4", "plain GRPO", alike=False),
            PairRow("ppo-imitate-keep", "ppo-4-updates", "PPO, beam 1 of 4", "plain PPO, four updates", alike=False),
            PairRow("first-improvement", "raft", "GRPO", "RAFT", alike=False),
            PairRow("imitate-keep", "raft", "GRPO, beam 1 of 4", "RAFT", alike=False),
            PairRow("paper-2.5e-4", "raft", "GRPO, the paper's", "RAFT", alike=False),
        ],
        headline="first-improvement",
    ),
    VerdictTask(
        "real_model",
        "SmolLM2, far lakes",
        0.12,
        [
            PairRow("far-imitate", "far-raft", "GRPO", TRIALS, alike=False),
            PairRow("far-imitate", "far-raft-shipped", "GRPO", LAYER, alike=False),
            PairRow("far-imitate", "far-grpo", "GRPO", "plain GRPO", alike=False),
            PairRow("far-imitate", "far-ppo", "GRPO", "plain PPO", alike=False),
            PairRow("far-tree", "far-raft", "GRPO, tree credit", TRIALS, alike=False),
            PairRow("far-paper", "far-raft-shipped", "GRPO, the paper's", LAYER, alike=False),
        ],
        headline="far-imitate",
    ),
    VerdictTask(
        "real_model",
        "SmolLM2, lakes of 3 × 3",
        0.12,
        [
            PairRow("sure-imitate", "sure-raft-shipped", "GRPO", LAYER, alike=False),
            PairRow("sure-imitate", "sure-raft", "GRPO", TRIALS),
            PairRow("sure-imitate", "sure-grpo", "GRPO", "plain GRPO", alike=False),
            PairRow("sure-imitate", "sure-ppo", "GRPO", "plain PPO", alike=False),
            PairRow("sure-tree", "sure-raft-shipped", "GRPO, tree credit", LAYER, alike=False),
            PairRow("sure-paper", "sure-raft-shipped", "GRPO, the paper's", LAYER, alike=False),
        ],
        headline="sure-imitate",
    ),
    VerdictTask(
        "real_model",
        "SmolLM2, slippery lakes of 3 × 3",
        0.12,
        [
            PairRow("slippery-imitate", "slippery-ppo", "GRPO", "plain PPO", alike=False),
            PairRow("slippery-imitate", "slippery-grpo", "GRPO", "plain GRPO", alike=False),
            PairRow("slippery-imitate", "slippery-raft-shipped", "GRPO", LAYER, alike=False),
            PairRow("slippery-imitate", "slippery-raft", "GRPO", TRIALS, alike=False),
            PairRow("slippery-tree", "slippery-raft-shipped", "GRPO, tree credit", LAYER, alike=False),
            PairRow("slippery-paper", "slippery-raft-shipped", "GRPO, the paper's", LAYER, alike=False),
        ],
        headline="slippery-imitate",
    ),
    VerdictTask(
        "webshop_search",
        "WebShop, crowded",
        0.15,
        [
            PairRow(f"crowded-{_SHOPS_IMITATE}", f"crowded-{_SHOPS_RAFT}", "GRPO", "RAFT"),
            PairRow(
                f"crowded-{_SHOPS_IMITATE}",
                "crowded-observations-5e-4-4-updates",
                "GRPO",
                OBSERVED,
                alike=False,
            ),
            PairRow("crowded-graph-outcomes", f"crowded-{_SHOPS_RAFT}", _GRAPH, "RAFT"),
            PairRow("crowded-ppo-imitate", f"crowded-{_SHOPS_RAFT}", "PPO", "RAFT", alike=False),
            PairRow(f"crowded-{_SHOPS_IMITATE}", "crowded-grpo", "GRPO", "plain GRPO", alike=False),
            PairRow("crowded-ppo-imitate", "crowded-ppo", "PPO", "plain PPO", alike=False),
        ],
        headline=f"crowded-{_SHOPS_IMITATE}",
    ),
]
