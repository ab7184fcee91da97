"""Which searched recipes are compared with which plain ones. No figures."""

from collections.abc import Sequence
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
class VerdictTask:
    """The rows of a task in the table of verdicts.

    Args:
        study: whose results.
        name: of the task.
        aim: success rate ahead of the plain recipe, set before the runs.
        pairs: its rows.
        environment: the name of one of a mixture, whose instances alone are counted; empty: all instances.
    """

    study: str
    name: str
    aim: float
    pairs: Sequence[PairRow]
    environment: str = ""


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
