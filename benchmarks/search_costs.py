"""What each search strategy costs and finds: `python -m benchmarks.search_costs`, as published in docs/search.md.

Every strategy searches the same held-out instances once, with the embedded policy as it is shipped.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.scoreless import Hanoi, LastText, Puzzle, Tiles, Uniform
from tsr_lightning.costs import Costs
from tsr_lightning.engines.base import Engine, Sampling
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.envs.base import Branchable
from tsr_lightning.envs.make import make_env
from tsr_lightning.policy.chat import Chat, SingleTurn
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.rng import Key
from tsr_lightning.rollout.instances import HeldOut, Instances
from tsr_lightning.search import (
    AdaptiveTree,
    Beam,
    BestOfN,
    ContrastBeam,
    EntropyExpansion,
    EntropyRise,
    FirstImprovement,
    Lookahead,
    ProcessScore,
    Sample,
    SearchFailures,
    Strategy,
    SuffixRestarts,
    Vine,
)
from tsr_lightning.search.driver import Driver, SearchTask
from tsr_lightning.search.random_rollouts import BestSuccess, MeanSuccess, RandomRollouts, ShareSolved
from tsr_lightning.search.scorers import EnvironmentScore, Scorer
from tsr_lightning.search.simulator import ChatFormat, TokenLimits
from tsr_lightning.trajectory import Candidate, Group

BARE: dict[str, Any] = {"prompt_style": "bare"}  # as the task's configuration has it
HARD = {**BARE, "min_solution": 6}


@dataclass(frozen=True)
class InstanceSet:
    """Instances of one kind.

    Args:
        title: of its table.
        policy: an embedded one.
        env: its id.
        env_kwargs: its arguments.
    """

    title: str
    policy: str
    env: str
    env_kwargs: dict[str, Any]


SETS = [
    InstanceSet("Sokoban, as shipped", "embedded/sokoban", "tsr/Sokoban-v0", BARE),
    InstanceSet("Sokoban, shortest solutions of 6 to 10 moves", "embedded/sokoban", "tsr/Sokoban-v0", HARD),
    InstanceSet("FrozenLake, as shipped, slippery", "embedded/frozen_lake", "tsr/FrozenLake-v0", BARE),
]
STRATEGIES: dict[str, Strategy] = {
    "Sample": Sample(),
    "BestOfN 4": BestOfN(4),
    "BestOfN 8": BestOfN(8),
    "Beam 1 of 2": Beam(1, 2),
    "Beam 1 of 4": Beam(1, 4),
    "Beam 2 of 4": Beam(2, 4),
    "Beam 4 of 4": Beam(4, 4),
    "FirstImprovement of 4": FirstImprovement(4),
    "FirstImprovement of 8": FirstImprovement(8),
    "FirstImprovement of 8, with replacement": FirstImprovement(8, without_replacement=False),
    "Lookahead 4, depth 2, width 2": Lookahead(),
    "SearchFailures of Beam 2 of 4": SearchFailures(),
    "SearchFailures of Beam 2 of 4, 2 samples": SearchFailures(samples=2),
    "SearchFailures of Beam 1 of 4": SearchFailures(Beam(1, 4)),
    "ContrastBeam 2 and 1 of 4, 1 rollout": ContrastBeam(),
    "ContrastBeam 2 and 0 of 4, 1 rollout": ContrastBeam(contrast=0),
    "SuffixRestarts of Beam 2 of 4": SuffixRestarts(),
    "EntropyExpansion 2 and 2 x 3": EntropyExpansion(),
    "EntropyRise 4 of 8": EntropyRise(),
    "AdaptiveTree 4, the task's score": AdaptiveTree(scorer=EnvironmentScore()),
    "Vine of 4": Vine(),
    "Vine of 4, half of the states": Vine(share=0.5),
}
OWN = EnvironmentScore()
GUIDES: dict[str, Scorer] = {
    "the task's own score": OWN,
    **{
        f"{count} rollouts, {value}": RandomRollouts(count, value=of)
        for count, value, of in (
            (8, "mean", MeanSuccess()),
            (32, "mean", MeanSuccess()),
            (128, "mean", MeanSuccess()),
            (32, "best", BestSuccess()),
            (32, "share", ShareSolved()),
        )
    },
}
GUIDED: dict[str, Strategy] = {
    f"Beam 1 of {candidates}, {name}": Beam(1, candidates, scorer)
    for candidates in (2, 4)
    for name, scorer in GUIDES.items()
}
SCORELESS: dict[str, Puzzle] = {
    "Sliding tiles, two rows of three": Tiles(max_turns=12),
    "Towers of Hanoi, four discs": Hanoi(max_turns=15),
}


@dataclass(frozen=True)
class StrategyFigures:
    """Figures of one strategy over all instances."""

    name: str
    searches: int
    costs: Costs
    successes: int
    contrasts: int  # states with two candidates followed to an end, one to a success and one not
    seconds: float  # of the CPU


def contrasting_states(tree: Sequence[Candidate]) -> int:
    """States of which one candidate led to a success below it, and another to ends without any."""
    ended, succeeded = [each.done for each in tree], [each.succeeded for each in tree]
    outcomes: dict[int | None, set[bool]] = defaultdict(set)  # by the candidate that led to the state
    for place in reversed(range(len(tree))):  # what is below a candidate comes after it
        parent = tree[place].parent
        if ended[place]:
            outcomes[parent].add(succeeded[place])
            if parent is not None:
                ended[parent], succeeded[parent] = True, succeeded[parent] or succeeded[place]
    return sum(len(found) == 2 for found in outcomes.values())


class Player(NamedTuple):
    """An environment, and the chat format and engine that play it."""

    env: Branchable
    chat: ChatFormat
    engine: Engine
    context: int

    @classmethod
    def of(cls, instance_set: InstanceSet) -> "Player":
        spec = PolicySpec(instance_set.policy)
        tokenizer = load_tokenizer(spec, ())
        policy, chat = Policy(spec, tokenizer, critic=False), Chat(tokenizer, SingleTurn())
        env = make_env(instance_set.env, **instance_set.env_kwargs)
        return cls(env, chat, Transformers().build(policy, chat.end_ids, policy.context_length), policy.context_length)


def measure(
    player: Player, strategies: Mapping[str, Strategy], instances: int, searches: int = 1
) -> list[StrategyFigures]:
    """Searches each instance as often as it says."""
    env, chat, engine, context = player
    held_out = Instances([env], Key(0), HeldOut(instances)).held_out
    rows = []
    for name, strategy in strategies.items():
        driver = Driver([env], chat, engine, Sampling(1.0, 12), TokenLimits(context), keep_tree=True)
        before = time.process_time()
        seeds = [seed for _, seed in held_out for _ in range(searches)]
        found = driver.run([SearchTask(seed, 0, strategy, Key(1).fold_in(i)) for i, seed in enumerate(seeds)])
        seconds = time.process_time() - before
        successes = sum(trajectory.succeeded for trajectory in found)
        contrasts = sum(contrasting_states(trajectory.tree) for trajectory in found)
        rows.append(StrategyFigures(name, len(found), driver.costs, successes, contrasts, seconds))
    return rows


def learned(player: Player, samples: int = 2000) -> ProcessScore:
    """A process score, from plain samples of as many instances that are not held out."""
    env, chat, engine, context = player
    driver = Driver([env], chat, engine, Sampling(1.0, 12), TokenLimits(context))
    found = driver.run([SearchTask(10_000 + i, 0, Sample(), Key(5).fold_in(i)) for i in range(samples)])
    score = ProcessScore()
    score.model.learn(0, [Group(each.instance, (each,)) for each in found], 0)
    score.model.begin(1)
    return score


def _per_thousand(count: int, row: StrategyFigures) -> str:
    return f"{1000 * count / row.costs.tokens_generated:.1f}"


COLUMNS: Mapping[str, Callable[[StrategyFigures], str]] = {
    "strategy": lambda row: row.name,
    "success": lambda row: f"{row.successes / row.searches:.3f}",
    "tokens a search": lambda row: f"{row.costs.tokens_generated / row.searches:.0f}",
    "environment steps a search": lambda row: f"{row.costs.env_steps / row.searches:.1f}",
    "waves": lambda row: str(row.costs.waves),
    "successes per 1,000 tokens": lambda row: _per_thousand(row.successes, row),
    "contrasts per 1,000 tokens": lambda row: _per_thousand(row.contrasts, row),
    "CPU milliseconds a search": lambda row: f"{1000 * row.seconds / row.searches:.1f}",
}
OF_STRATEGIES = [name for name in COLUMNS if name != "CPU milliseconds a search"]
OF_GUIDES = ["strategy", "success", "tokens a search", "successes per 1,000 tokens", "CPU milliseconds a search"]


def table(rows: Sequence[StrategyFigures], columns: Sequence[str]) -> str:
    head, *lines = [columns, *([COLUMNS[name](row) for name in columns] for row in rows)]
    return "\n".join([_line(head), f"|{'---|' * len(columns)}", *map(_line, lines), ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search_costs", description=__doc__)
    parser.add_argument("--instances", type=int, default=256, help="held-out instances of each task")
    parser.add_argument("--guides", action="store_true", help="what guides a beam instead: scores and random play")
    parser.add_argument("--out", type=Path, default=Path("runs/search_costs.md"), help="file of the tables")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    texts: list[str] = []
    for instance_set in SETS:
        player = Player.of(instance_set)
        strategies, columns = (GUIDED, OF_GUIDES) if args.guides else (STRATEGIES, OF_STRATEGIES)
        if args.guides:
            strategies = {**strategies, "Beam 1 of 4, learned from 2,000 plain samples": Beam(1, 4, learned(player))}
        _add(texts, instance_set.title, table(measure(player, strategies, args.instances), columns))
    for title, puzzle in SCORELESS.items() if args.guides else ():
        player = Player(puzzle, LastText(), Uniform(), 1000)
        _add(texts, title, table(measure(player, GUIDED, max(1, args.instances // 16), searches=16), OF_GUIDES))
    args.out.write_text("\n".join(texts), encoding="utf-8")


def _add(texts: list[str], title: str, text: str) -> None:
    texts.append(f"### {title}\n\n{text}")
    print(texts[-1], flush=True)


if __name__ == "__main__":
    main()
