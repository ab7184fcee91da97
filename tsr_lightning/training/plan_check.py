"""Checks that an objective can learn from all that a plan rolls out."""

from tsr_lightning.errors import require
from tsr_lightning.objectives.base import Objective
from tsr_lightning.rollout.demonstrations import Demonstrations
from tsr_lightning.search.plan import Plan
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.trajectory import Origin

_SUPERVISED = "give it a supervised term (--config warm_start/supervised.yaml)"


def check_plan(objective: Objective, plan: Plan, file: Demonstrations | None = None) -> None:
    """Refuses a plan that in some epoch rolls out what the objective cannot learn from.

    A trajectory whose return is compared needs others of its group for that. One that is imitated needs none, nor does
    one whose responses are compared with their siblings in its tree, so there groups of one search are allowed.

    Args:
        objective: as configured.
        plan: of the rollouts.
        file: demonstrations that are read from a file too.
    """
    name, least = type(objective).__name__, objective.minimum_compared
    if file is not None:
        remedy = f"{name} learns from samples of the policy alone; {_SUPERVISED}, or use the objective SFT"
        require(objective.takes_demonstrations, "data.demonstrations.path", file.path, remedy)
    origins = [strategy.traits.origin for strategy in plan.strategies]
    demonstrates = file is not None or Origin.DEMONSTRATED in origins
    remedy = (
        "its supervised term needs demonstrations: give data.plan a strategy Expert (--config warm_start/split.yaml), "
        "give data.demonstrations.path, or set supervised to null"
    )
    require(demonstrates or not objective.needs_demonstrations, "model.objective", name, remedy)
    for strategy in plan.strategies:
        require(
            strategy.traits.origin is not Origin.DEMONSTRATED or objective.takes_demonstrations,
            "data.plan",
            type(plan).__name__,
            f"the demonstrations of {type(strategy).__name__} are no samples of the policy, and {name} learns from "
            f"samples; {_SUPERVISED}, or use the objective SFT",
        )
    _check_greedy(objective, plan)
    remedy = (
        "it compares the responses that a search proposes in one state, and no strategy of data.plan proposes several; "
        "use a search (--config search/beam.yaml), or ImitateSuccesses (--config credit/imitate.yaml)"
    )
    credit = objective.comparing_part
    branches = objective.needs.merges_states or any(strategy.traits.branches for strategy in plan.strategies)
    require(branches or not objective.needs.tree, "model.objective.init_args.searched", credit, remedy)
    remedy = (
        f"{credit} needs independent responses in a state, and this draws some by what came of others, or without "
        "replacement; use a Beam with without_replacement false, or ImitateSuccesses"
    )
    for strategy in plan.strategies:
        are_comparable = strategy.traits.independent_siblings or not objective.needs.tree
        require(are_comparable, "data.plan", type(strategy).__name__, remedy)
        _check_backup(objective, strategy)
    ends = file.epochs if file is not None and file.epochs is not None else 0
    for epoch in range(max(plan.constant_from, ends) + 1):
        require(
            plan.group_size(epoch) >= 1 or (file is not None and file.lasts(epoch)),
            "data.plan",
            type(plan).__name__,
            f"it rolls out nothing in epoch {epoch}, and data.demonstrations has nothing for it; give a file and "
            "enough epochs of it, or a plan with trajectories",
        )
        entries = [(entry.count, entry.strategy.traits) for entry in plan.entries(epoch) if entry.count]
        if objective.needs.merges_states and any(traits.branches for _, traits in entries):
            continue  # a single sample is compared with the responses that a search proposed in its states
        compared = sum(
            count
            for count, traits in entries
            if objective.compares(traits.origin) and not (objective.needs.tree and traits.branches)
        )
        require(
            compared == 0 or compared >= least,
            "data.plan",
            type(plan).__name__,
            f"it makes groups of {plan.group_size(epoch)}, of which {name} compares {compared} in epoch {epoch}; "
            f"without others there is no baseline, so let it compare at least {least}, or none (searched ones need "
            "no group under --config credit/imitate.yaml or credit/tree.yaml), or use PPO",
        )


def _check_greedy(objective: Objective, plan: Plan) -> None:
    """Refuses a baseline of greedy play without that, and greedy play without such a baseline."""
    name = type(objective).__name__
    for epoch in range(plan.constant_from + 1):
        origins = {entry.strategy.traits.origin for entry in plan.entries(epoch) if entry.count}
        remedy = (
            f"it has no greedy trajectory in epoch {epoch}, which is the baseline of {name}; add one by the strategy "
            "Greedy (--config search/greedy_baseline.yaml)"
        )
        has_baseline = Origin.GREEDY in origins or not any(map(objective.compares, origins))
        require(has_baseline or not objective.needs.greedy, "data.plan", type(plan).__name__, remedy)
        remedy = (
            f"its greedy trajectories are a baseline, and {name} compares nothing with it in epoch {epoch}; use "
            "another strategy alone, such as Sample"
        )
        compares = any(map(objective.compares, origins - {Origin.GREEDY}))
        require(compares or Origin.GREEDY not in origins, "data.plan", type(plan).__name__, remedy)
        remedy = (
            f"its greedy trajectories are a baseline, and {name} has another; leave them out, or use the advantage "
            "GreedyBaseline"
        )
        require(objective.needs.greedy or Origin.GREEDY not in origins, "data.plan", type(plan).__name__, remedy)


def _check_backup(objective: Objective, strategy: Strategy) -> None:
    """Refuses values of responses that mean something else in the trees of a strategy."""
    name = type(strategy).__name__
    remedy = (
        f"{name} plays plain samples on from a state to measure what the policy reaches there, and the best of them is "
        "luck; use MeanBackup (--config credit/tree_mean.yaml)"
    )
    takes_best = objective.needs.best_of_tree and strategy.traits.monte_carlo_rollouts
    require(not takes_best, "model.objective.init_args.searched.init_args.backup", "MaxBackup", remedy)
    scorer = strategy.traits.scored_by
    remedy = (
        "under MeanBackup a score stands for the return that is still to come, and this one counts the rewards before "
        "it too; use EnvironmentScore, MaxBackup, or MeanBackup with score_share 0"
    )
    counts_twice = objective.needs.scores_of_tree and scorer is not None and scorer.includes_rewards
    require(not counts_twice, f"{name}.scorer", type(scorer).__name__, remedy)
