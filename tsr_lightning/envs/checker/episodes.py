"""What must hold in whole episodes: one seed, one episode; budget, score and info as the contract says."""

from typing import NoReturn

from tsr_lightning.envs.base import HasOracle
from tsr_lightning.envs.checker import situations
from tsr_lightning.envs.checker.factory import BranchabilityError, Source
from tsr_lightning.envs.checker.telling import Shown
from tsr_lightning.envs.checker.watching import Seen, Standing, StepExecutor, differing, first_difference, told
from tsr_lightning.rng import Key

INFO_KEYS = ("success", "action_is_valid", "action_is_effective")


def check_episode(source: Source, stage: StepExecutor, seed: int) -> tuple[list[str], list[Shown]]:
    """Check an episode of random answers and, where there is a solver, a solved one.

    Returns the random answers, and what was seen of the scores.
    """
    actions: list[str] = []

    def fail(name: str, detail: str) -> NoReturn:
        raise BranchabilityError(f"{name}: {detail} ({source.name}, seed {seed}, actions {actions})")

    first, _ = stage.env.reset(seed=seed)
    standing = stage.stand()
    again, _ = stage.env.reset(seed=seed)
    if names := {"observation": again} if first != again else differing(standing, stage.stand()):
        fail("reset", f"a seed gave two beginnings: {told(names)}")
    if not standing.legal:
        fail("contract", "legal_actions() is empty at the beginning")
    if standing.remaining <= 0:
        fail("budget", f"remaining() is {standing.remaining} at the beginning")
    shown = [Shown(standing.score, 0.0, first)]
    if isinstance(stage.env, HasOracle):
        solution, seen = stage.solve(stage.env)
        for before, action, now in zip([standing, *(step.standing for step in seen)], solution, seen, strict=False):
            if problem := _step_problem(before, action, now):
                fail(*problem)
        shown += [Shown(now.standing.score, now.reward, now.observation) for now in seen]
        stage.env.reset(seed=seed)
        stage.stand()
    actions, seen = stage.wander(Key(seed).fold_in("episode"))
    for before, action, now in zip([standing, *(step.standing for step in seen)], actions, seen, strict=False):
        if problem := _step_problem(before, action, now):
            fail(*problem)
    shown += [Shown(now.standing.score, now.reward, now.observation) for now in seen]
    stage.env.reset(seed=seed)
    stage.stand()
    if names := first_difference(seen, stage.play(actions)):
        if _left_over(source, stage, seed, actions):
            fail("reset", f"something of the episode before is left, so a seed gave two episodes: {told(names)}")
        fail("shared noise", f"a seed gave two episodes, so chance comes from somewhere else: {told(names)}")
    # again without calling score(): the observations must not depend on it
    stage.env.reset(seed=seed)
    unasked = [stage.env.step(action)[0] for action in actions]
    if unasked != [now.observation for now in seen]:
        fail("score", "asking for it, the situation or the budget changes the observations")
    return actions, shown


def _left_over(source: Source, stage: StepExecutor, seed: int, actions: list[str]) -> bool:
    """Whether new environments agree on an episode of which an old one gave two."""
    if source.make is None:
        return False
    futures = list[list[Seen]]()
    for _ in range(4):
        new = StepExecutor(source.make(), stage.turns, stage.name)
        new.env.reset(seed=seed)
        futures.append(new.play(actions))
    return not any(first_difference(futures[0], other) for other in futures)


def _step_problem(before: Standing, action: str, now: Seen) -> tuple[str, str] | None:
    """The property that a step breaks, and how."""
    after = now.standing
    if missing := [name for name in INFO_KEYS if not isinstance(now.info.get(name), bool)]:
        return "contract", f"info lacks {', '.join(missing)}, or it is no bool, at {action!r}"
    valid = now.info["action_is_valid"]
    if action in before.legal and not valid:
        return "contract", f"step() calls {action!r} invalid, which legal_actions() offers"
    if now.info["success"] and after.score != 1.0:
        return "score", f"it is {after.score}, not 1, in a success, at {action!r}"
    if after.remaining > before.remaining or (valid and after.remaining == before.remaining):
        return "budget", f"remaining() went from {before.remaining} to {after.remaining}, at {action!r}"
    if not now.done and after.remaining <= 0:
        return "budget", f"remaining() is {after.remaining} and the episode goes on, at {action!r}"
    return situations.step_problem(before, action, now)
