"""Plays episodes of a policy to be looked at: on held-out instances, by any strategies."""

from collections.abc import Sequence

from tsr_lightning.rng import Key
from tsr_lightning.rollout.actor import Actor
from tsr_lightning.rollout.groups import run_groups
from tsr_lightning.rollout.instances import Instance
from tsr_lightning.search.driver import SearchTask
from tsr_lightning.search.progress import Report, unreported
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.trajectory import Trajectory


def play_episodes(
    actor: Actor,
    instances: Sequence[Instance],
    strategies: Sequence[Strategy],
    count: int,
    key: Key,
    report: Report = unreported,
) -> list[Trajectory]:
    """So many recorded episodes, shared out over the instances; fewer where the environment failed.

    Args:
        actor: plays them.
        instances: of which each gets about as many episodes.
        strategies: in turn, of an instance's episodes.
        count: of all.
        key: names the draws.
        report: called after every wave.
    """
    actor.sync()
    driver = actor.driver(record=True)
    tasks = [
        [
            SearchTask(seed, member, strategies[member % len(strategies)], key.fold_in("shown", place, member), env)
            for member in range(count // len(instances) + (place < count % len(instances)))
        ]
        for place, (env, seed) in enumerate(instances[:count])
    ]
    groups = run_groups(driver, tasks, report)
    return [trajectory for group in groups for trajectory in group.trajectories]
