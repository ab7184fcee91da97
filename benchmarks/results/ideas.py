"""What was tried in tuning, by idea. No figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.results.recipes import Kind


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


@dataclass(frozen=True)
class Tried:
    """The ideas that a tuning study tried on one set of instances.

    Args:
        study: the tuning study.
        instances: what they are called.
        ideas: its rows.
        environment: the name of one of a mixture, whose instances alone are counted; empty: all instances.
    """

    study: str
    instances: str
    ideas: Sequence[Idea]
    environment: str = ""


_STEPS = ("2.5e-4", "5e-4", "2.5e-4-4-updates", "5e-4-4-updates")  # of signals_tuning, signals_lakes_tuning


_PLAIN: Mapping[str, str] = {
    "raft": "RAFT",
    "observations": "RAFT, observations as targets beside",
    "full-raft": "RAFT, prompts with all earlier turns",
    "full-observations": "the same, observations as targets beside",
    "learnable": "GRPO, half of the levels drawn again by learnability",
    "graph-sample": "GRPO, credit on the graph of plain samples' states",
    "graph-ppo": "PPO, the same",
}
_SEARCHED: Mapping[str, str] = {
    "paper": "the paper's: groups of searches as if they were samples",
    "rollouts": "successes of a beam that random play guides",
    "ppo-rollouts": "the same under PPO",
    "imitate": "successes of a beam of two candidates",
    "graph": "credit on the graph of a beam's states",
    "graph-outcomes": "the same, outcomes alone as values",
    "target": "a distribution over a beam's candidates as the target, by their log-probabilities",
    "weights": "a distribution over a beam's candidates as the target, by how often each was drawn",
    "weights-outcomes": "a distribution over a beam's candidates by how often each was drawn, outcomes alone as values",
    "process": "branches where a learned score promises most",
    "process-outcomes": "the same, credited by what came of them alone",
    "expansion": "trees that branch where the policy is unsure",
    "rise": "trees that branch where it became less sure",
}


def _four_trials(
    study: str, prefix: str, instances: str, recipes: Sequence[str] = ("raft", "paper"), environment: str = ""
) -> Tried:
    """Recipes with the same four trials each."""

    def ideas(named: Mapping[str, str], kind: Kind) -> list[Idea]:
        known = {recipe: words for recipe, words in named.items() if recipe in recipes}
        return [Idea(words, [f"{prefix}{recipe}-{step}" for step in _STEPS], kind) for recipe, words in known.items()]

    all_ideas = [*ideas(_PLAIN, "plain"), *ideas(_SEARCHED, "searched")]
    return Tried(study, f"{instances}, the same four trials each", all_ideas, environment)


TRIED: Sequence[Tried] = [
    Tried(
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
    Tried(
        "sokoban_tuning",
        "Sokoban, 8 to 10 moves",
        [
            Idea("RAFT", ["longest-raft-4-updates", "longest-raft-2-updates", "longest-raft-2.5e-4"], "plain"),
            Idea("successes of a beam", ["longest-imitate-4-updates", "longest-imitate-beam-1-of-2"]),
            Idea("successes of first improvement", ["longest-first-improvement-of-8"]),
            Idea("tree credit, GRPO", ["longest-tree-5e-4", "longest-tree-2.5e-4"]),
        ],
    ),
    Tried(
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
    Tried(
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
    Tried(
        "webshop_tuning",
        "WebShop, crowded",
        [
            Idea("GRPO", ["crowded-grpo-2.5e-4", "crowded-grpo-1.25e-4"], "plain"),
            Idea("RAFT", ["crowded-raft-2e-4"], "plain"),
            Idea("successes of a beam", ["crowded-imitate-2e-4"]),
        ],
    ),
    _four_trials(
        "signals_tuning",
        "hard-",
        "Sokoban, 4 to 10 moves",
        [*_PLAIN, *(recipe for recipe in _SEARCHED if recipe != "ppo-rollouts")],
    ),
    _four_trials(
        "signals_tuning",
        "rare-",
        "Sokoban, 6 to 10 moves",
        [
            *("raft", "observations", "learnable", "graph-sample", "graph-ppo", "rollouts", "ppo-rollouts", "graph"),
            *("target", "weights", "process", "expansion", "rise"),
        ],
    ),
    _four_trials("signals_tuning", "longest-", "Sokoban, 8 to 10 moves"),
    _four_trials("signals_lakes_tuning", "", "FrozenLake, slippery"),
    _four_trials(
        "signals_tuning",
        "curriculum-",
        "Sokoban, 8 to 10 moves, after a curriculum",
        [
            *("raft", "observations", "learnable", "graph-sample", "imitate", "rollouts", "graph"),
            *("target", "weights", "process", "expansion", "rise"),
        ],
        "longest",
    ),
    _four_trials(
        "signals_shops_tuning",
        "",
        "WebShop, crowded",
        [
            *("raft", "observations", "learnable", "graph-sample", "imitate", "graph", "graph-outcomes"),
            "weights-outcomes",
            *("process", "process-outcomes", "rise"),
        ],
    ),
]
