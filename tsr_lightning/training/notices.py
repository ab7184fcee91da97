"""Notices about the responses of rollouts and evaluations, each logged once in a run."""

from collections.abc import Sequence

from lightning.pytorch.utilities import rank_zero_info

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


def _said(phase: str, problem: str | None) -> bool:
    if problem is not None:
        rank_zero_info(f"{phase}: {problem}")
    return problem is not None
