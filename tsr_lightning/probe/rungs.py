"""The rungs: a task each, the value that it must reach, and what is broken where it does not."""

from collections.abc import Callable, Mapping

from tsr_lightning.probe.parts import Outcome, Probed
from tsr_lightning.probe.watch import AGREES, Watch
from tsr_lightning.search.strategies import Strategy

_EPOCHS = 60  # of a rung, at most
_CRITIC_EPOCHS = 100  # at most, in which a critic learns while the policy stands still
_TURNS = 4  # of an episode that is searched
_FLIPPED = 0.1  # the most of that chance (`AGREES`) where the sign is the fault


def constant(name: str, probed: Probed) -> Outcome:
    """One answer is right, whatever is asked. The first update is looked at token by token."""
    watch = Watch(probed.answers.right, 0.9)
    probed.run(watch, _EPOCHS)
    return _learnt(name, watch, _fault_of_update(watch) or _slow(watch, "one answer is right, and it is not learnt"))


def by_prompt(name: str, probed: Probed) -> Outcome:
    """The prompt says which answer is right."""
    watch = Watch(goal=0.9)
    probed.run(watch, _EPOCHS, by_prompt=True)
    return _learnt(name, watch, _slow(watch, "the prompt says which answer is right, and it is not heeded"))


def over_turns(name: str, probed: Probed) -> Outcome:
    """The first of three answers decides, and the last turn pays."""
    watch = Watch(goal=0.85)
    probed.run(watch, _EPOCHS, turns=3, first_alone=True)
    return _learnt(name, watch, _slow(watch, "a reward does not reach the turn that earned it"))


def noisy(name: str, probed: Probed) -> Outcome:
    """One reward in five is the wrong one."""
    watch = Watch(goal=0.85)
    probed.run(watch, _EPOCHS, luck=0.2)
    return _learnt(name, watch, _slow(watch, "noise in the rewards is not averaged out"))


def critic(name: str, probed: Probed) -> Outcome:
    """Prompts A pay nine times in ten, prompts B one time in ten: the critic has to tell them apart."""
    needed = 0.25  # 0.8 is the most that rewards by chance allow; a critic that learns nothing has 0.1 at most
    watch = Watch(value_goal=needed)
    probed.run(watch, _CRITIC_EPOCHS, still=True, blind=True)
    value = watch.value_correlation
    fault = "" if value >= needed else "deaf critic: its values do not follow the returns of the prompts"
    return Outcome(name, value, needed, "correlation of values and returns", fault)


def searching(name: str, probed: Probed, search: Strategy) -> Outcome:
    """Answers that the search chooses by its scorer have to be better than those of plain play."""
    scorer, watch = search.traits.scored_by, Watch()
    assert scorer is not None
    epochs = _CRITIC_EPOCHS if scorer.needs_critic else 1
    probed.run(watch, epochs, still=True, search=search, turns=_TURNS, distinct=True)
    chance = probed.answers.chance
    value = watch.searched[-1].mean_return - watch.results[-1].mean_return
    needed = chance * (1 - chance) / 2  # half of what the better of two answers gains
    who = f"{type(search).__name__} with {type(scorer).__name__}"
    fault = "" if value >= needed else f"the scorer is noise: what {who} chooses is hardly better than plain play"
    return Outcome(name, value, needed, f"return gained by {type(search).__name__}", fault)


Rung = Callable[[str, Probed], Outcome]
LEARNING: Mapping[str, Rung] = {
    "constant": constant,
    "prompt": by_prompt,
    "turns": over_turns,
    "noise": noisy,
}


def _learnt(name: str, watch: Watch, fault: str) -> Outcome:
    return Outcome(name, watch.success[-1], watch.goal or 1.0, f"success from {watch.success[0]:.2f} to", fault)


def _slow(watch: Watch, what: str) -> str:
    """The fault of a run that did not reach its goal; "" for one that did."""
    return "" if watch.goal is None or watch.success[-1] >= watch.goal else f"{what} (in {_EPOCHS} epochs)"


def _fault_of_update(watch: Watch) -> str:
    """What is wrong with the first update, by what it does to right and wrong tokens; "" if nothing."""
    agreement = watch.agreement
    if agreement is None:
        return "zero advantage: the first rollouts have right and wrong answers, and no token is made likelier"
    if agreement <= _FLIPPED:
        return "flipped sign: the first update makes right answers less likely than wrong ones"
    if agreement < AGREES:
        return (
            "shifted mask: the first update credits other tokens than those that earned it (it raises a right one "
            f"above a wrong one in {agreement:.0%} of the pairs)"
        )
    return "" if watch.moved else "the optimizer moves no weight: model.optimizer.learning_rate, or frozen weights"
