"""Saves and restores the scorers of a plan that learn."""

from collections.abc import Mapping
from typing import Any

from tsr_lightning.errors import ConfigError
from tsr_lightning.search.plan import Plan

_KEY = "scorers"


def learners_state(plan: Plan, epochs: int) -> dict[str, Any]:
    """The state of the scorers after so many epochs, as plain types; empty where none learns."""
    learners = plan.learners
    return {_KEY: [learner.state_dict(epochs) for learner in learners]} if learners else {}


def load_learners(plan: Plan, state_dict: Mapping[str, Any]) -> None:
    """Restores the scorers that learn.

    Raises:
        ConfigError: the checkpoint has the state of other scorers.
    """
    learners, states = plan.learners, state_dict.get(_KEY, [])
    if len(learners) != len(states):
        raise ConfigError(
            f"data.plan has {len(learners)} scorers that learn, and the checkpoint's run had {len(states)}: "
            "resume with the same searches, or start a new run"
        )
    for learner, state in zip(learners, states, strict=True):
        learner.load_state_dict(state)
