"""Notices about the responses of rollouts and evaluations, each logged once in a run."""

from collections.abc import Sequence

from lightning.pytorch.utilities import rank_zero_info

from tsr_lightning.objectives.base import Objective
from tsr_lightning.objectives.state_graph import action_of_two_outcomes
from tsr_lightning.rollout.actor import Actor
from tsr_lightning.rollout.answer_notice import ended_by_tokens, few_valid_actions, longer_than_allowed
from tsr_lightning.trajectory import Group


class ResponseNotices:
    """Logs that hardly any response is a valid action, that demonstrated ones are too long to be said, and that a token
    limit ended episodes."""

    def __init__(self) -> None:
        self._said_few_valid = False
        self._said_ended = False
        self._said_long = False

    def log(self, phase: str, groups: Sequence[Group], actor: Actor) -> None:
        """Logs what was not logged before.

        Args:
            phase: "rollout", or the name of an evaluation protocol.
            groups: of it.
            actor: played them.
        """
        if not self._said_few_valid:
            form, most = actor.answer_form, actor.spec.sampling.max_response_tokens
            self._said_few_valid = _said(phase, few_valid_actions(groups, most, form))
        if not self._said_long:
            self._said_long = _said(phase, longer_than_allowed(groups, actor.spec.sampling.max_response_tokens))
        if not self._said_ended:
            self._said_ended = _said(phase, ended_by_tokens(groups, actor.context_tokens, actor.spec.episode_tokens))


class ChanceNotice:
    """Logs that an action led from one state to two, where credit on the graph of states takes the better of them."""

    def __init__(self) -> None:
        self._said = False

    def log(self, phase: str, groups: Sequence[Group], objective: Objective) -> None:
        """Logs what was not logged before. Arguments as of `ResponseNotices.log`; the objective is the epoch's."""
        if self._said or not (objective.needs.merges_states and objective.needs.best_of_tree):
            return
        for group in groups:
            action = action_of_two_outcomes([each for each in group.trajectories if each.origin.is_sampled])
            if action is not None:
                self._said = _said(
                    phase,
                    f"in instance {group.instance} the action {action!r} led from one state to two. MaxBackup takes "
                    "the better one for both, which is luck: use MeanBackup (--config credit/graph.yaml), or add to "
                    "state_key() what decided",
                )
                return


def _said(phase: str, problem: str | None) -> bool:
    if problem is not None:
        rank_zero_info(f"{phase}: {problem}")
    return problem is not None
