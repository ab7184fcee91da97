"""What the tables of docs/results.md show, and in which order. No figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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
class Task:
    """The rows of a task in the table of verdicts.

    Args:
        study: whose results.
        name: of the task, with its start.
        aim: success rate ahead of the plain recipe, set before the runs.
        pairs: its rows.
    """

    study: str
    name: str
    aim: float
    pairs: Sequence[PairRow]


@dataclass(frozen=True)
class Recipe:
    """A row of a table of ends.

    Args:
        arm: of the study.
        name: what it does.
        one_day: whether its seconds were measured under like conditions as most; else they get a star.
        is_ceiling: whether it learns from the solver; never bold.
    """

    arm: str
    name: str
    one_day: bool = True
    is_ceiling: bool = False


@dataclass(frozen=True)
class Block:
    """Recipes on the same instances.

    Args:
        recipes: its rows; those without a finished run are left out.
        levels: of the first row: which instances; empty where a table has but one block.
        start: of the second row.
    """

    recipes: Sequence[Recipe]
    levels: str = ""
    start: str = ""


def _sokoban_pairs(levels: str) -> list[PairRow]:
    return [
        PairRow(f"{levels}-imitate", f"{levels}-raft", "GRPO", "RAFT"),
        PairRow(f"{levels}-ppo-imitate", f"{levels}-raft", "PPO", "RAFT"),
        PairRow(f"{levels}-imitate", f"{levels}-grpo", "GRPO", "plain GRPO"),
        PairRow(f"{levels}-ppo-imitate", f"{levels}-ppo", "PPO", "plain PPO"),
    ]


TASKS = [
    Task("sokoban_search", "Sokoban of 8 to 10 moves, start 0, 8 points", 0.08, _sokoban_pairs("longest")),
    Task("sokoban_search", "6 to 10 moves, start .01", 0.08, _sokoban_pairs("rare")),
    Task("sokoban_search", "4 to 10 moves, start .10", 0.08, _sokoban_pairs("hard")),
    Task("sokoban_search", "2 to 10 moves, start .23", 0.08, _sokoban_pairs("default")),
    Task(
        "frozen_lake_search",
        "FrozenLake, slippery, start .30, 12 points",
        0.12,
        [
            PairRow("first-improvement", "grpo", "GRPO", "plain GRPO"),
            PairRow("first-improvement", "ppo-4-updates", "GRPO", "plain PPO, four updates"),
            PairRow("ppo-first-improvement", "ppo-4-updates", "PPO", "plain PPO, four updates"),
            PairRow("ppo-first-improvement", "ppo-8-updates", "PPO", "plain PPO, eight updates"),
        ],
    ),
    Task(
        "webshop_search",
        "WebShop, crowded, start .09, 15 points",
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


def _sokoban_block(levels: str, name: str, start: str) -> Block:
    recipes = [
        Recipe(f"{levels}-{recipe}", words, is_ceiling=recipe == "expert") for recipe, words in _SOKOBAN_RECIPES.items()
    ]
    return Block(recipes, name, start)


ENDS: Mapping[str, tuple[str, Sequence[Block]]] = {  # by table: the study and its blocks
    "sokoban": (
        "sokoban_search",
        [
            _sokoban_block("longest", "8 to 10 moves", "start 0, 0"),
            _sokoban_block("rare", "6 to 10 moves", "start .012, 0"),
            _sokoban_block("hard", "4 to 10 moves", "start .100, .230"),
            _sokoban_block("default", "2 to 10 moves", "start .234, .383"),
        ],
    ),
    "frozen_lake": (
        "frozen_lake_search",
        [
            Block(
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
                    Recipe("grpo", "GRPO on plain samples, 72 x 8, four updates"),
                    Recipe("ppo-8-updates", "PPO on plain samples, 72 x 8, eight updates"),
                    Recipe("ppo-4-updates", "PPO on plain samples, 72 x 8, four updates"),
                    Recipe("ppo", "PPO on plain samples, 72 x 8, two updates of half the size", one_day=False),
                    Recipe("raft", "RAFT: successes of plain samples, 576 x 1", one_day=False),
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
                    Recipe("expert", "supervised by the solver, 184 x 1", one_day=False, is_ceiling=True),
                ]
            )
        ],
    ),
    "webshop": (
        "webshop_search",
        [
            Block(
                [
                    Recipe("crowded-raft", "RAFT: successes of plain samples, 160 x 1"),
                    Recipe("crowded-imitate", "GRPO, successes of a beam 1 of 2, 80 x 1"),
                    Recipe("crowded-ppo-imitate", "PPO, the same", one_day=False),
                    Recipe("crowded-ppo", "PPO on plain samples, 20 x 8", one_day=False),
                    Recipe("crowded-grpo", "GRPO on plain samples, 20 x 8", one_day=False),
                    Recipe("crowded-expert", "supervised by the solver, 160 x 1", one_day=False, is_ceiling=True),
                ]
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
