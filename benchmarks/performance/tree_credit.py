"""What tree credit trains on, and what its update costs: `python -m benchmarks.performance.tree_credit`.

Rollouts are of the embedded policies, by the shipped recipes' settings. An update is all that follows a rollout but the
optimizer: credit, old log-probabilities, schedule, forward and backward passes. It is timed in CPU seconds of this
process, with the ways that are compared in turn.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks.performance.report import machine
from tsr_lightning.batching.schedule import Updates, micro_batches, schedule
from tsr_lightning.batching.sequences import ToEstimate
from tsr_lightning.batching.tensors import Estimates
from tsr_lightning.engines.base import Sampling
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.envs.make import make_env
from tsr_lightning.objectives import GRPO, ImitateSuccesses, MeanBackup, Objective, TreeCredit
from tsr_lightning.objectives.signal import Compared
from tsr_lightning.policy.chat import Chat, Context, Full, SingleTurn
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.rng import Key
from tsr_lightning.search.driver import Driver, SearchTask
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Beam, Strategy
from tsr_lightning.training.credit import credited_sequences
from tsr_lightning.training.distributed import ProcessGroup
from tsr_lightning.trajectory import Candidate, Group

_COMMON = {"prompt_style": "bare", "max_turns": 5, "actions_per_turn": 2, "max_actions": 10, "observation": "both"}
_SOKOBAN = {**_COMMON, "size": [6, 6], "boxes": 1, "max_solution": 10}
_LAKE = {**_COMMON, "size": 4, "frozen": 0.9}
TREE, IMITATION = GRPO(searched=TreeCredit()), GRPO(searched=ImitateSuccesses())
OPTIONS = {
    "tree credit": TREE,
    "MeanBackup": GRPO(searched=TreeCredit(backup=MeanBackup())),
    "imitation 1": GRPO(searched=TreeCredit(imitation=1.0)),
    "size_power 0": GRPO(searched=TreeCredit(size_power=0.0)),
    "drop_uniform false": GRPO(searched=TreeCredit(drop_uniform=False)),
    "imitating the winner": IMITATION,
}


@dataclass(frozen=True)
class Setting:
    """What is searched."""

    name: str
    model: str
    env: str
    env_kwargs: Mapping[str, Any]
    context: Context = SingleTurn()  # noqa: RUF009  (frozen)


SETTINGS = (
    Setting("Sokoban", "embedded/sokoban", "tsr/Sokoban-v0", {**_SOKOBAN, "min_solution": 2}),
    Setting("Sokoban, hard levels", "embedded/sokoban", "tsr/Sokoban-v0", {**_SOKOBAN, "min_solution": 4}),
    Setting("Sokoban, rarely solved", "embedded/sokoban", "tsr/Sokoban-v0", {**_SOKOBAN, "min_solution": 6}),
    Setting("FrozenLake", "embedded/frozen_lake", "tsr/FrozenLake-v0", {**_LAKE, "success_rate": 0.8}),
    Setting("FrozenLake, no slip", "embedded/frozen_lake", "tsr/FrozenLake-v0", {**_LAKE, "success_rate": 1.0}),
)
HARD = SETTINGS[1]


class RolledOut(NamedTuple):
    """A rollout of one search an instance."""

    groups: list[Group]
    tokens_generated: int


def search(setting: Setting, policy: Policy, strategy: Strategy, instances: int) -> RolledOut:
    spec = policy.spec
    chat = Chat(load_tokenizer(spec, ()), setting.context)
    engine = Transformers().build(policy, chat.end_ids, policy.context_length)
    driver = Driver(
        [make_env(setting.env, **setting.env_kwargs)],
        chat,
        engine,
        Sampling(max_response_tokens=12),
        TokenLimits(policy.context_length),
        keep_tree=True,
    )
    tasks = [SearchTask(1000 + i, 0, strategy, Key(1).fold_in(i)) for i in range(instances)]
    groups = [Group(trajectory.instance, (trajectory,)) for trajectory in driver.run(tasks)]
    engine.close()
    return RolledOut(groups, driver.costs.tokens_generated)


def load(model: str) -> Policy:
    spec = PolicySpec(model)
    return Policy(spec, load_tokenizer(spec, ()), critic=False)


# -- signal per generated token ----------------------------------------------------------------------------------------


class Signal(NamedTuple):
    """Turns that move the policy: responses that are compared with different ones, or imitated."""

    turns: int
    distinct: int  # equal responses in one state counted once


def signal(groups: Sequence[Group], objective: Objective) -> Signal:
    parts = [
        part
        for group in groups
        for part in objective.comparisons(group)
        if Compared(group, [part], objective).has_signal()
    ]
    turns = [
        (i, turn.prompt, turn.response)
        for i, part in enumerate(parts)
        for member in part.members
        if objective.compares(member.origin) or objective.imitates(member)
        for turn in member.turns
    ]
    return Signal(len(turns), len(set(turns)))


# -- the update --------------------------------------------------------------------------------------------------------


class Cost(NamedTuple):
    """Of an update."""

    seconds: float  # CPU
    sequences: int
    unshared_tokens: int  # without sharing prefixes
    tokens: int  # computed in forward and backward passes


def update(groups: Sequence[Group], objective: Objective, policy: Policy, updates: Updates) -> Cost:
    def estimate(asked: Sequence[ToEstimate]) -> list[Estimates]:
        sequences = list(chain.from_iterable(one.sequences for one in asked))
        found: dict[int, torch.Tensor] = {}
        with torch.no_grad():
            for indices, batch in micro_batches(sequences, updates.tokens_at_once):
                logprobs = policy.outputs(batch.packed, 1.0).logprobs
                found.update(zip(indices, logprobs.split([sequences[i].trained_tokens for i in indices]), strict=True))
        in_order = iter([found[i] for i in range(len(sequences))])
        together = [torch.cat([next(in_order) for _ in one.sequences]) for one in asked]
        return [Estimates(own, torch.zeros_like(own), torch.zeros_like(own), 0.0) for own in together]

    policy.zero_grad()
    started = time.process_time()
    sequences = credited_sequences(
        [objective.comparisons(group) for group in groups], objective, estimate, ProcessGroup()
    ).sequences
    steps = schedule(sequences, updates, Key(0)) if sequences else []
    batches = list(chain.from_iterable(steps))
    for batch in batches:
        objective.loss(batch.targets, policy.outputs(batch.packed, 1.0, entropies=True)).total.backward()
    seconds = time.process_time() - started
    packs = [batch.packed for batch in batches]
    return Cost(seconds, len(sequences), sum(pack.unshared_tokens for pack in packs), sum(len(pack) for pack in packs))


def repeated(groups: Sequence[Group], times: int) -> list[Group]:
    """Groups whose every candidate was drawn so many times: more rows, and no more distinct tokens."""

    def tree(candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        copies = [candidate for candidate in candidates if candidate.drawn]
        return (*candidates, *copies * (times - 1))

    return [
        replace(group, trajectories=tuple(replace(t, tree=tree(t.tree)) for t in group.trajectories))
        for group in groups
    ]


def in_turn(
    rows: Mapping[str, tuple[Sequence[Group], Objective]], policy: Policy, updates: Updates, laps: int
) -> dict[str, Cost]:
    """The medians of CPU seconds over laps, in which all are measured one after the other; a lap before warms up."""
    costs: dict[str, list[Cost]] = {name: [] for name in rows}
    for lap in range(laps + 1):
        for name in list(rows) if lap % 2 else list(rows)[::-1]:
            cost = update(*rows[name], policy, updates)
            if lap:
                costs[name].append(cost)
    return {name: own[0]._replace(seconds=median(cost.seconds for cost in own)) for name, own in costs.items()}


# -- tables ------------------------------------------------------------------------------------------------------------


def signal_table(instances: int) -> str:
    lines = []
    for setting in SETTINGS:
        groups, generated = search(setting, load(setting.model), Beam(width=2, candidates=4), instances)
        tree, imitated = signal(groups, TREE), signal(groups, IMITATION)
        solved = sum(trajectory.succeeded for group in groups for trajectory in group.trajectories)
        lines.append(
            f"| {setting.name} | {solved / len(groups):.0%} | {generated:,} | {imitated.turns} | {tree.turns} "
            f"| {tree.distinct} | {tree.turns / max(imitated.turns, 1):.1f} "
            f"| {tree.distinct / max(imitated.distinct, 1):.1f} |\n"
        )
    head = (
        "| beam 2 of 4 | solved | tokens generated | turns imitated | responses compared | distinct "
        "| compared over imitated | distinct over distinct |\n|---|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(lines)


def growth_table(title: str, responses: Mapping[str, int], costs: Mapping[str, Cost]) -> str:
    first, fewest = next(iter(costs.values())), next(iter(responses.values()))
    head = (
        f"| {title} | responses compared | sequences trained | tokens without sharing | tokens computed | CPU seconds "
        "| responses, relative | tokens, relative | seconds, relative |\n|---|---|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(
        f"| {name} | {responses[name]:,} | {cost.sequences:,} | {cost.unshared_tokens:,} | {cost.tokens:,} "
        f"| {cost.seconds:.2f} | {_relative(responses[name], fewest)} | {_relative(cost.tokens, first.tokens)} "
        f"| {_relative(cost.seconds, first.seconds)} |\n"
        for name, cost in costs.items()
    )


def option_table(costs: Mapping[str, Cost]) -> str:
    first = next(iter(costs.values()))
    head = (
        "| update | sequences trained | tokens computed | CPU seconds | tokens, relative | seconds, relative |\n"
        "|---|---|---|---|---|---|\n"
    )
    return head + "".join(
        f"| {name} | {cost.sequences:,} | {cost.tokens:,} | {cost.seconds:.2f} "
        f"| {_relative(cost.tokens, first.tokens)} | {_relative(cost.seconds, first.seconds)} |\n"
        for name, cost in costs.items()
    )


def _relative(amount: float, first: float) -> str:
    return f"{amount / first:.2f}" if first else "–"  # a search or two may compare nothing


def compared(groups: Sequence[Group]) -> int:
    return sum(len(part.members) for group in groups for part in TREE.comparisons(group))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.performance.tree_credit", description=__doc__)
    parser.add_argument("--instances", type=int, default=32, help="one search on each")
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/performance"), help="folder of tree_credit.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    tables = [f"{machine()}, one thread; {args.instances} searches.\n"]

    def add(table: str) -> None:
        tables.append(table)
        print(table, flush=True)
        (args.out / "tree_credit.md").write_text("\n".join(tables), encoding="utf-8")

    add(signal_table(args.instances))
    policy, updates = load(HARD.model), Updates(minibatches=2, micro_batch_tokens=4096)
    groups = search(HARD, policy, Beam(width=2, candidates=4), args.instances).groups
    add(option_table(in_turn({name: (groups, each) for name, each in OPTIONS.items()}, policy, updates, args.laps)))
    copied = {str(times): repeated(groups, times) for times in (1, 2, 4, 8)}
    candidates = {
        str(count): search(HARD, policy, Beam(width=2, candidates=count), args.instances // 2).groups
        for count in (2, 4, 8, 16)
    }
    whole = {
        str(count): search(replace(HARD, context=Full()), policy, Beam(width=2, candidates=count), args.instances // 2)
        for count in (2, 4, 8)
    }
    for title, points in {
        "times that each candidate was drawn": copied,
        "candidates of a beam of width 2": candidates,
        "the same, the whole episode in a prompt": {name: found.groups for name, found in whole.items()},
    }.items():
        costs = in_turn({name: (own, TREE) for name, own in points.items()}, policy, updates, args.laps)
        add(growth_table(title, {name: compared(own) for name, own in points.items()}, costs))


if __name__ == "__main__":
    main()
