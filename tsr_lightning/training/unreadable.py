"""Whether hardly a response can be read, and why that may be."""

from collections.abc import Sequence

from tsr_lightning.trajectory import Origin, Trajectory

HARDLY = 0.05  # of the responses: a policy that knows the form of an answer is far above it, whatever it plays
_SHOWN = 60  # characters of a response


def unreadable(trajectories: Sequence[Trajectory], max_response_tokens: int) -> str | None:
    """One sentence with the likely reason; None where enough responses are valid actions.

    Args:
        trajectories: of a rollout or an evaluation.
        max_response_tokens: the budget of a response.
    """
    said = [trajectory for trajectory in trajectories if trajectory.origin is not Origin.DEMONSTRATED]  # by the policy
    turns = [turn for trajectory in said for turn in trajectory.turns]
    unread = [turn for turn in turns if not turn.valid]
    if not turns or len(turns) - len(unread) >= HARDLY * len(turns):
        return None
    cut = sum(not turn.finished for turn in unread)
    if 2 * cut > len(unread):
        reason = (
            f"{cut / len(unread):.0%} were cut off at data.sampling.max_response_tokens = {max_response_tokens}: raise "
            "it, or ask for shorter answers"
        )
    else:
        reason = (
            "the policy was not taught the form of answer that the environment asks for: give data.env_kwargs (such as "
            "prompt_style) as it was trained with, or begin with configs/warm_start"
        )
    share = 1 - len(unread) / len(turns)
    return f"{share:.1%} of {len(turns):,} responses are valid actions, unlike {unread[0].text[:_SHOWN]!r}; {reason}"
