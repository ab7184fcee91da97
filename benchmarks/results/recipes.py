"""The recipes of the studies, by their instances. No figures."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["plain", "searched", "solver"]


@dataclass(frozen=True)
class Recipe:
    """A row of a table of ends.

    Args:
        arm: of the study.
        name: what it does.
        kind: what its rollouts are: samples, searches, or demonstrations of the solver.
        alike: whether its seconds were measured under like conditions as most; else they get a star.
    """

    arm: str
    name: str
    kind: Kind = "searched"
    alike: bool = True


@dataclass(frozen=True)
class Block:
    """Recipes on the same instances.

    Args:
        name: which instances.
        recipes: its rows; those without a finished run are left out.
        environment: the name of one of a mixture, whose instances alone are counted; empty: all instances.
    """

    name: str
    recipes: Sequence[Recipe]
    environment: str = ""


_SOKOBAN_RECIPES = {
    "raft": "RAFT: successes of plain samples, four updates",
    "raft-2.5e-4": "RAFT with half the step size, four updates",
    "observations": "RAFT with half the step size, four updates, observations as targets beside",
    "imitate": "GRPO, successes of a beam 1 of 2",
    "imitate-distinct": "GRPO, the same with responses that differ (`without_replacement`)",
    "ppo-imitate": "PPO, successes of a beam 1 of 2",
    "grpo": "GRPO on plain samples",
    "ppo": "PPO on plain samples",
    "rollouts": "GRPO, successes of a beam 1 of 4 that random play guides",
    "rollouts-4-updates": "GRPO, successes of a beam 1 of 4 that random play guides, half the step size, four updates",
    "ppo-rollouts-4-updates": "PPO, the same",
    "tree": "GRPO, tree credit, beam 1 of 4",
    "graph": "GRPO, credit on the graph of a beam's states, 1 of 4, half the step size",
    "graph-5e-4": "GRPO, credit on the graph of a beam's states, 1 of 4",
    "best-of-4": "successes of best of 4",
    "imitate-of-4": "successes of a beam 1 of 4, four updates",
    "search-first": "beam 1 of 2 for 15 epochs, then plain samples, four updates",
    "expert": "supervised by the solver, 320 x 1, four updates",
    "paper": "the paper's: GRPO on groups of eight beams 1 of 4, as if they were samples",
    "paper-4-updates": "the paper's with four updates an epoch, the best of its four trials",
    "learnable": "GRPO on plain samples, half of the levels drawn again by learnability",
    "learnable-4-updates": "GRPO on plain samples, half of the levels drawn again by learnability, four updates",
    "graph-sample": "GRPO, credit on the graph of plain samples' states",
    "graph-ppo": "PPO, the same",
    "weights": "a distribution over a beam's candidates as the target, by how often each was drawn",
    "target-4-updates": "the same by their log-probabilities, four updates",
    "expansion-4-updates": "GRPO, trees that branch where the policy is unsure, four updates",
    "expansion": "GRPO, trees that branch where the policy is unsure",
    "rise": "GRPO, trees that branch where it became less sure",
    "process": "GRPO, trees that branch where a learned score promises most",
}


_SOKOBAN_KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(
        (
            *("raft", "raft-2.5e-4", "observations", "grpo", "ppo"),
            *("learnable", "learnable-4-updates", "graph-sample", "graph-ppo"),
        ),
        "plain",
    ),
    "expert": "solver",
}


def _sokoban_block(levels: str, name: str, environment: str = "", unlike: Collection[str] = ()) -> Block:
    recipes = [
        Recipe(f"{levels}-{recipe}", words, _SOKOBAN_KINDS.get(recipe, "searched"), alike=recipe not in unlike)
        for recipe, words in _SOKOBAN_RECIPES.items()
    ]
    return Block(name, recipes, environment)


# Runs that shared the machine with other work
_LATER = (
    "observations",
    "ppo-rollouts-4-updates",
    "learnable",
    "learnable-4-updates",
    "graph-sample",
    "graph-ppo",
    "weights",
    "target-4-updates",
    "expansion-4-updates",
    "expansion",
    "rise",
    "process",
)


# Of the curriculum's study, what ran on other days
_OTHER_DAYS = ("grpo", "ppo", "ppo-imitate", "tree", "graph-5e-4", "observations")


_REAL_MODEL_RECIPES = {
    "raft": "RAFT: successes of plain samples",
    "raft-shipped": "RAFT at the layer's step size",
    "grpo": "GRPO on plain samples, groups of 8",
    "ppo": "PPO on plain samples, groups of 8",
    "imitate": "GRPO, successes of a beam 2 of 4 whose candidates differ",
    "tree": "GRPO, tree credit on a beam 2 of 4",
    "paper": "the paper's: GRPO on groups of four beams 2 of 4, as if they were samples",
}


# Something else had a part of their core for some minutes
_REAL_MODEL_DISTURBED = {
    *(("far", name) for name in ("raft", "raft-shipped", "grpo", "ppo", "tree", "paper")),
    *(("sure", name) for name in ("grpo", "raft-shipped", "tree", "ppo")),
    *(("slippery", name) for name in ("imitate", "raft", "raft-shipped", "grpo", "ppo", "tree", "paper")),
}


def _real_model_block(lakes: str, name: str) -> Block:
    return Block(
        name,
        [
            Recipe(
                f"{lakes}-{recipe}",
                words,
                "plain" if recipe in ("raft", "raft-shipped", "grpo", "ppo") else "searched",
                alike=(lakes, recipe) not in _REAL_MODEL_DISTURBED,
            )
            for recipe, words in _REAL_MODEL_RECIPES.items()
        ],
    )


ENDS: Mapping[str, tuple[str, Sequence[Block]]] = {  # by table: the study and its blocks
    "sokoban": (
        "sokoban_search",
        [
            _sokoban_block("longest", "Sokoban, 8 to 10 moves"),
            _sokoban_block(
                "rare", "Sokoban, 6 to 10 moves", unlike=("raft-2.5e-4", "rollouts-4-updates", "graph-5e-4", *_LATER)
            ),
            _sokoban_block("hard", "Sokoban, 4 to 10 moves", unlike=("rollouts", "graph", *_LATER)),
            _sokoban_block("default", "Sokoban, 2 to 10 moves"),
        ],
    ),
    "curriculum": (
        "sokoban_curriculum",
        [
            _sokoban_block("longest", "8 to 10 moves from the start", "longest", (*_OTHER_DAYS, "raft-2.5e-4")),
            _sokoban_block(
                "curriculum",
                "2 to 10 moves for 20 epochs, then 8 to 10",
                "longest",
                (*_OTHER_DAYS, "raft"),
            ),
        ],
    ),
    "frozen_lake": (
        "frozen_lake_search",
        [
            Block(
                "FrozenLake, slippery",
                [
                    Recipe("first-improvement", "GRPO, successes of first improvement of 8, 200 x 1"),
                    Recipe("ppo-first-improvement", "PPO, the same"),
                    Recipe(
                        "imitate-keep",
                        "GRPO, successes of a beam 1 of 4 with the luck of the search (`keep`), 184 x 1",
                        alike=False,
                    ),
                    Recipe("ppo-imitate-keep", "PPO, the same"),
                    Recipe("tree", "GRPO, tree credit by means, beam 1 of 4, four updates, 184 x 1", alike=False),
                    Recipe("ppo-tree-4-updates", "PPO, the same", alike=False),
                    Recipe("ppo-tree", "PPO, the same with two updates", alike=False),
                    Recipe("grpo", "GRPO on plain samples, 72 x 8, four updates", "plain"),
                    Recipe("ppo-8-updates", "PPO on plain samples, 72 x 8, eight updates", "plain"),
                    Recipe("ppo-4-updates", "PPO on plain samples, 72 x 8, four updates", "plain"),
                    Recipe("ppo", "PPO on plain samples, 72 x 8, two updates of half the size", "plain", alike=False),
                    Recipe("raft", "RAFT: successes of plain samples, 576 x 1, four updates", "plain", alike=False),
                    Recipe(
                        "imitate",
                        "GRPO, successes of a beam 1 of 2 played again (`resample`), 140 x 1",
                        alike=False,
                    ),
                    Recipe(
                        "paper",
                        "the paper's: GRPO on groups of eight beams 1 of 4, as if they were samples",
                        alike=False,
                    ),
                    Recipe("paper-2.5e-4", "the same with half the step size, as its own trials chose", alike=False),
                    Recipe("expert", "supervised by the solver, 184 x 1, four updates", "solver", alike=False),
                ],
            )
        ],
    ),
    "webshop": (
        "webshop_search",
        [
            Block(
                "WebShop, crowded",
                [
                    Recipe(
                        "crowded-raft-2.5e-4-4-updates",
                        "RAFT: successes of plain samples, 160 x 1, four updates",
                        "plain",
                    ),
                    Recipe("crowded-imitate-5e-4-4-updates", "GRPO, successes of a beam 1 of 2, 80 x 1, four updates"),
                    Recipe("crowded-graph-outcomes", "GRPO, credit on the graph of a beam's states, outcomes alone"),
                    Recipe("crowded-raft-groups", "RAFT in groups of eight, 20 x 8", "plain"),
                    Recipe(
                        "crowded-observations-5e-4-4-updates",
                        "RAFT with twice the step size, four updates, observations as targets beside",
                        "plain",
                        alike=False,
                    ),
                    Recipe("crowded-raft", "RAFT, two updates of a smaller step", "plain", alike=False),
                    Recipe("crowded-imitate", "GRPO, successes of a beam, likewise", alike=False),
                    Recipe("crowded-ppo-imitate", "PPO, the same", alike=False),
                    Recipe("crowded-ppo", "PPO on plain samples, 20 x 8", "plain", alike=False),
                    Recipe("crowded-grpo", "GRPO on plain samples, 20 x 8", "plain", alike=False),
                    Recipe("crowded-expert", "supervised by the solver, 160 x 1, four updates", "solver", alike=False),
                ],
            )
        ],
    ),
    "real_model": (
        "real_model",
        [
            _real_model_block("far", "lakes of 4 × 4, five moves and more"),
            _real_model_block("sure", "lakes of 3 × 3"),
            _real_model_block("slippery", "the same, one move in five slips"),
        ],
    ),
}
