"""What the tables of docs/results.md show, and in which order. No figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PairRow:
    """A searched recipe minus a plain one.

    Args:
        arm: the searched one.
        other: the plain one.
        under: the objective of the first.
        minus: what the second is called.
        one_day: whether their seconds were measured under like conditions; else they are not compared.
    """

    arm: str
    other: str
    under: str
    minus: str
    one_day: bool = True


@dataclass(frozen=True)
class VerdictTask:
    """The rows of a task in the table of verdicts.

    Args:
        study: whose results.
        name: of the task.
        aim: success rate ahead of the plain recipe, set before the runs.
        pairs: its rows.
    """

    study: str
    name: str
    aim: float
    pairs: Sequence[PairRow]


Kind = Literal["plain", "searched", "solver"]


@dataclass(frozen=True)
class Recipe:
    """A row of a table of ends.

    Args:
        arm: of the study.
        name: what it does.
        kind: what its rollouts are: samples, searches, or demonstrations of the solver.
        one_day: whether its seconds were measured under like conditions as most; else they get a star.
    """

    arm: str
    name: str
    kind: Kind = "searched"
    one_day: bool = True


@dataclass(frozen=True)
class Block:
    """Recipes on the same instances.

    Args:
        name: which instances.
        recipes: its rows; those without a finished run are left out.
    """

    name: str
    recipes: Sequence[Recipe]


@dataclass(frozen=True)
class Idea:
    """A row of the table of what was tried, on one tuning study.

    Args:
        name: the idea.
        arms: its trials.
        kind: "plain" for the rows to compare it with.
    """

    name: str
    arms: Sequence[str]
    kind: Kind = "searched"


def _sokoban_pairs(levels: str, raft_of_one_day: bool, plain_of_one_day: bool) -> list[PairRow]:
    return [
        PairRow(f"{levels}-imitate", f"{levels}-raft", "GRPO", "RAFT", raft_of_one_day),
        PairRow(f"{levels}-ppo-imitate", f"{levels}-raft", "PPO", "RAFT", raft_of_one_day),
        PairRow(f"{levels}-imitate", f"{levels}-grpo", "GRPO", "plain GRPO", plain_of_one_day),
        PairRow(f"{levels}-ppo-imitate", f"{levels}-ppo", "PPO", "plain PPO", plain_of_one_day),
    ]


TASKS = [
    VerdictTask(
        "sokoban_search",
        "Sokoban, 8 to 10 moves",
        0.08,
        [
            PairRow("longest-imitate-distinct", "longest-raft", "GRPO, responses that differ", "RAFT", one_day=False),
            *_sokoban_pairs("longest", raft_of_one_day=False, plain_of_one_day=False),
        ],
    ),
    VerdictTask("sokoban_search", "Sokoban, 6 to 10 moves", 0.08, _sokoban_pairs("rare", False, False)),
    VerdictTask("sokoban_search", "Sokoban, 4 to 10 moves", 0.08, _sokoban_pairs("hard", True, False)),
    VerdictTask("sokoban_search", "Sokoban, 2 to 10 moves", 0.08, _sokoban_pairs("default", True, True)),
    VerdictTask(
        "frozen_lake_search",
        "FrozenLake, slippery",
        0.12,
        [
            PairRow("first-improvement", "grpo", "GRPO", "plain GRPO"),
            PairRow("first-improvement", "ppo-4-updates", "GRPO", "plain PPO, four updates"),
            PairRow("ppo-first-improvement", "ppo-4-updates", "PPO", "plain PPO, four updates"),
            PairRow("ppo-first-improvement", "ppo-8-updates", "PPO", "plain PPO, eight updates"),
            PairRow("imitate-keep", "grpo", "GRPO, beam 1 of 4", "plain GRPO", one_day=False),
            PairRow("ppo-imitate-keep", "ppo-4-updates", "PPO, beam 1 of 4", "plain PPO, four updates"),
        ],
    ),
    VerdictTask(
        "webshop_search",
        "WebShop, crowded",
        0.15,
        [
            PairRow("crowded-imitate", "crowded-raft", "GRPO", "RAFT"),
            PairRow("crowded-ppo-imitate", "crowded-raft", "PPO", "RAFT", one_day=False),
            PairRow("crowded-imitate", "crowded-grpo", "GRPO", "plain GRPO", one_day=False),
            PairRow("crowded-ppo-imitate", "crowded-ppo", "PPO", "plain PPO", one_day=False),
        ],
    ),
]

_SOKOBAN_RECIPES = {
    "raft": "RAFT: successes of plain samples",
    "imitate": "GRPO, successes of a beam 1 of 2",
    "imitate-distinct": "GRPO, the same with responses that differ (`without_replacement`)",
    "ppo-imitate": "PPO, successes of a beam 1 of 2",
    "grpo": "GRPO on plain samples",
    "ppo": "PPO on plain samples",
    "tree": "GRPO, tree credit, beam 1 of 4",
    "best-of-4": "successes of best of 4",
    "imitate-of-4": "successes of a beam 1 of 4, four updates",
    "search-first": "beam 1 of 2 for 15 epochs, then plain samples",
    "expert": "supervised by the solver, 320 x 1",
    "paper": "the paper's: GRPO on groups of eight beams 1 of 4, as if they were samples",
}


_SOKOBAN_KINDS: Mapping[str, Kind] = {"raft": "plain", "grpo": "plain", "ppo": "plain", "expert": "solver"}


def _sokoban_block(levels: str, name: str) -> Block:
    return Block(
        name,
        [
            Recipe(f"{levels}-{recipe}", words, _SOKOBAN_KINDS.get(recipe, "searched"))
            for recipe, words in _SOKOBAN_RECIPES.items()
        ],
    )


ENDS: Mapping[str, tuple[str, Sequence[Block]]] = {  # by table: the study and its blocks
    "sokoban": (
        "sokoban_search",
        [
            _sokoban_block("longest", "8 to 10 moves"),
            _sokoban_block("rare", "6 to 10 moves"),
            _sokoban_block("hard", "4 to 10 moves"),
            _sokoban_block("default", "2 to 10 moves"),
        ],
    ),
    "frozen_lake": (
        "frozen_lake_search",
        [
            Block(
                "slippery",
                [
                    Recipe("first-improvement", "GRPO, successes of first improvement of 8, 200 x 1"),
                    Recipe("ppo-first-improvement", "PPO, the same"),
                    Recipe(
                        "imitate-keep",
                        "GRPO, successes of a beam 1 of 4 with the luck of the search (`keep`), 184 x 1",
                        one_day=False,
                    ),
                    Recipe("ppo-imitate-keep", "PPO, the same"),
                    Recipe("tree", "GRPO, tree credit by means, beam 1 of 4, four updates, 184 x 1", one_day=False),
                    Recipe("ppo-tree-4-updates", "PPO, the same", one_day=False),
                    Recipe("ppo-tree", "PPO, the same with two updates", one_day=False),
                    Recipe("grpo", "GRPO on plain samples, 72 x 8, four updates", "plain"),
                    Recipe("ppo-8-updates", "PPO on plain samples, 72 x 8, eight updates", "plain"),
                    Recipe("ppo-4-updates", "PPO on plain samples, 72 x 8, four updates", "plain"),
                    Recipe("ppo", "PPO on plain samples, 72 x 8, two updates of half the size", "plain", one_day=False),
                    Recipe("raft", "RAFT: successes of plain samples, 576 x 1", "plain", one_day=False),
                    Recipe(
                        "imitate",
                        "GRPO, successes of a beam 1 of 2 played again (`resample`), 140 x 1",
                        one_day=False,
                    ),
                    Recipe(
                        "paper",
                        "the paper's: GRPO on groups of eight beams 1 of 4, as if they were samples",
                        one_day=False,
                    ),
                    Recipe("expert", "supervised by the solver, 184 x 1", "solver", one_day=False),
                ],
            )
        ],
    ),
    "webshop": (
        "webshop_search",
        [
            Block(
                "crowded",
                [
                    Recipe("crowded-raft", "RAFT: successes of plain samples, 160 x 1", "plain"),
                    Recipe("crowded-imitate", "GRPO, successes of a beam 1 of 2, 80 x 1"),
                    Recipe("crowded-ppo-imitate", "PPO, the same", one_day=False),
                    Recipe("crowded-ppo", "PPO on plain samples, 20 x 8", "plain", one_day=False),
                    Recipe("crowded-grpo", "GRPO on plain samples, 20 x 8", "plain", one_day=False),
                    Recipe("crowded-expert", "supervised by the solver, 160 x 1", "solver", one_day=False),
                ],
            )
        ],
    ),
}

IN_DEPTH = {  # folders of sokoban_search/in_depth
    "rare-raft": "RAFT",
    "rare-imitate": "GRPO, successes of a beam 1 of 2",
    "rare-ppo-imitate": "PPO, the same",
    "rare-grpo": "GRPO on plain samples",
    "rare-ppo": "PPO on plain samples",
}

COMBINATIONS = {"sokoban": "Sokoban", "frozen_lake": "FrozenLake", "webshop": "WebShop"}  # by the axis `task`

TRIED: Sequence[tuple[str, str, Sequence[Idea]]] = [  # the study, its instances, and what was tried on them
    (
        "sokoban_tuning",
        "Sokoban, 6 to 10 moves",
        [
            Idea("GRPO", ["grpo-1e-3", "grpo-5e-4", "grpo-2.5e-4", "grpo-4-updates", "grpo-groups-of-32"], "plain"),
            Idea("PPO", ["ppo-1e-3", "ppo-5e-4", "ppo-2.5e-4", "ppo-4-updates"], "plain"),
            Idea(
                "RAFT",
                [
                    *("raft-1e-3", "raft-5e-4", "raft-2.5e-4", "raft-4-updates", "raft-8-updates", "raft-groups-of-8"),
                    *("raft-4-updates-temperature-1.5", "raft-4-updates-entropy"),
                ],
                "plain",
            ),
            Idea(
                "successes of a beam, of two, four or eight candidates",
                [
                    *("imitate-1e-3", "imitate-5e-4", "imitate-4-updates", "imitate-8-updates", "imitate-beam-2"),
                    *("imitate-beam-1-of-2", "imitate-beam-1-of-2-4-updates", "imitate-beam-1-of-8"),
                ],
            ),
            Idea("the same under PPO", ["ppo-imitate-1e-3", "ppo-imitate-5e-4"]),
            Idea("eight searches of an instance instead of one", ["imitate-groups-of-8"]),
            Idea(
                "more entropy, by temperature or a bonus",
                ["imitate-beam-1-of-2-temperature-1.5", "imitate-beam-1-of-2-entropy"],
            ),
            Idea("search first, samples later", ["raft-search-first"]),
            Idea("search of what samples failed", ["imitate-failures", "failed-groups", "failed-groups-of-2"]),
            Idea("successes of best of 4", ["best-of-4"]),
            Idea("tree credit, GRPO", ["tree-1e-3", "tree-5e-4", "tree-2.5e-4"]),
            Idea("tree credit, PPO", ["ppo-tree-1e-3", "ppo-tree-5e-4"]),
            Idea("tree credit with imitation beside it", ["tree-and-imitate"]),
            Idea("tree credit, pruned candidates played out", ["tree-rollouts"]),
        ],
    ),
    (
        "sokoban_tuning",
        "Sokoban, 8 to 10 moves",
        [
            Idea("RAFT", ["longest-raft-4-updates", "longest-raft-2-updates", "longest-raft-2.5e-4"], "plain"),
            Idea("successes of a beam", ["longest-imitate-4-updates", "longest-imitate-beam-1-of-2"]),
            Idea("successes of first improvement", ["longest-first-improvement-of-8"]),
            Idea("tree credit, GRPO", ["longest-tree-5e-4", "longest-tree-2.5e-4"]),
        ],
    ),
    (
        "frozen_lake_tuning",
        "FrozenLake, slippery",
        [
            Idea(
                "GRPO",
                [
                    *("grpo-5e-4", "grpo-2.5e-4", "grpo-4-updates", "grpo-wide-4-updates", "grpo-wide-8-updates"),
                    "grpo-wide-groups-of-4",
                ],
                "plain",
            ),
            Idea(
                "PPO",
                [
                    *("ppo-5e-4", "ppo-2.5e-4", "ppo-4-updates", "ppo-wide", "ppo-wide-5e-4", "ppo-wide-4-updates"),
                    "ppo-wide-8-updates",
                ],
                "plain",
            ),
            Idea("RAFT", ["raft-5e-4", "raft-4-updates", "raft-wide"], "plain"),
            Idea(
                "successes of a beam, with the luck of the search",
                ["imitate-keep", "imitate-keep-wide", "imitate-keep-wide-4-updates", "imitate-keep-wide-1-of-2"],
            ),
            Idea(
                "successes of a beam, played again",
                [
                    *("imitate-resample", "imitate-resample-1-of-2", "imitate-resample-4-updates"),
                    "ppo-imitate-resample",
                ],
            ),
            Idea("successes of first improvement", ["first-improvement", "first-improvement-alike"]),
            Idea(
                "tree credit by means",
                ["tree-mean", "ppo-tree-mean", "tree-wide-4-updates", "ppo-tree-wide-4-updates"],
            ),
            Idea("tree credit by means, every candidate played out", ["tree-vine"]),
        ],
    ),
    (
        "webshop_tuning",
        "WebShop, default shops",
        [
            Idea("GRPO", ["grpo-2.5e-4"], "plain"),
            Idea("PPO", ["ppo-2.5e-4"], "plain"),
            Idea("RAFT", ["raft-4-updates", "raft-2e-4"], "plain"),
            Idea("successes of a beam", ["imitate-1-of-2", "imitate-1-of-2-2e-4"]),
            Idea("the same under PPO", ["ppo-imitate-1-of-2-2e-4"]),
            Idea("tree credit", ["tree-2e-4"]),
        ],
    ),
    (
        "webshop_tuning",
        "WebShop, crowded",
        [
            Idea("GRPO", ["crowded-grpo-2.5e-4", "crowded-grpo-1.25e-4"], "plain"),
            Idea("RAFT", ["crowded-raft-2e-4"], "plain"),
            Idea("successes of a beam", ["crowded-imitate-2e-4"]),
        ],
    ),
]
