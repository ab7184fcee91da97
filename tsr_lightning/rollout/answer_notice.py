"""Notices and an error about responses: few are valid actions, demonstrated ones are too long to be said, or a token
limit ended episodes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tsr_lightning.errors import RunError
from tsr_lightning.trajectory import Ended, Group, Origin

FEW_VALID = 0.05  # of the responses: a policy that knows the answer format is far above it, however well it plays
_EXCERPT = 400  # characters of a response


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How an environment wants to be answered.

    Args:
        env: its id.
        prompt_style: the one that its arguments name; None where they name none.
        says_form: whether prompts of that style say what an answer looks like.
        example: a response that can be played in its first state; None where it lists no legal actions.
    """

    env: str
    prompt_style: str | None
    says_form: bool
    example: str | None


def check_valid(
    groups: Sequence[Group], min_valid: float, max_response_tokens: int, form: Callable[[int], AnswerForm]
) -> None:
    """Raises a RunError where a smaller share than `min_valid` of a rollout's responses are valid actions: to learn the
    form from such a rollout costs hours, and a warm start minutes. Other arguments as of `few_valid_actions`."""
    problem = few_valid_actions(groups, max_response_tokens, form, min_valid)
    if problem is not None:
        raise RunError(
            f"stopped before the updates, since data.min_valid is {min_valid:g}: {problem}; or train from here with "
            "--data.min_valid 0"
        )


def few_valid_actions(
    groups: Sequence[Group], max_response_tokens: int, form: Callable[[int], AnswerForm], least: float = FEW_VALID
) -> str | None:
    """One sentence where hardly any response is a valid action, with a whole response beside a valid one; None where
    enough are. Demonstrations are left out.

    Args:
        groups: of a rollout or an evaluation.
        max_response_tokens: of a response.
        form: gives the form of the environment with an index.
        least: the share of valid actions that is enough.
    """
    played = [
        (group.env, turn)
        for group in groups
        for trajectory in group.trajectories
        if trajectory.origin is not Origin.DEMONSTRATED
        for turn in trajectory.turns
    ]
    invalid = [(env, turn) for env, turn in played if not turn.valid]
    if not played or len(played) - len(invalid) >= least * len(played):
        return None
    env, turn = invalid[0]
    asked = form(env)
    valid = len(played) - len(invalid)
    begins = f"{valid:,} of {len(played):,} responses ({valid / len(played):.1%}) are valid actions"
    beside = "" if asked.example is None else f", while {asked.example!r} would be one"
    ends = "cut off" if not turn.finished else "ended by itself"
    compared = f"{asked.env} was answered with {_excerpt(turn.text)} ({ends}){beside}"
    return f"{begins}: {compared}; {_remedy([not turn.finished for _, turn in invalid], max_response_tokens, asked)}"


def _remedy(cut: Sequence[bool], max_response_tokens: int, asked: AnswerForm) -> str:
    style, formed = asked.prompt_style, "configs/warm_start/form.yaml"
    if asked.example is None:  # random actions, which that file imitates, need a list of them
        formed = "demonstrations (data.demonstrations, or configs/search/expert.yaml with an oracle)"
    if style is None:
        taught = f"begin with {formed}"
    elif style == "instruct":
        taught = (
            "its data.env_kwargs.prompt_style is instruct, which says the form, so the model has to learn to keep to "
            f"it: begin with {formed}"
        )
    elif asked.says_form:
        taught = (
            f"its data.env_kwargs.prompt_style is {style}: give the one that the model was trained with, a pretrained "
            f"model instruct, or begin with {formed}"
        )
    else:
        taught = (
            f"its data.env_kwargs.prompt_style is {style}, for policies that were trained with it: give a pretrained "
            "model instruct, or begin with configs/warm_start"
        )
    share = sum(cut) / len(cut)
    if share <= 0.5:
        return taught
    return (
        f"{share:.0%} were cut off at data.sampling.max_response_tokens = {max_response_tokens}, so raise it if the "
        f"answer would have followed, and else {taught}"
    )


def longer_than_allowed(groups: Sequence[Group], max_response_tokens: int) -> str | None:
    """One sentence on demonstrated responses that are too long for the policy to say; None without any. Arguments as of
    `few_valid_actions`."""
    lengths = [
        len(turn.response)
        for group in groups
        for trajectory in group.trajectories
        if trajectory.origin is Origin.DEMONSTRATED
        for turn in trajectory.turns
    ]
    longer = sum(length > max_response_tokens for length in lengths)
    if not longer:
        return None
    return (
        f"{longer:,} of {len(lengths):,} demonstrated responses have more than data.sampling.max_response_tokens = "
        f"{max_response_tokens}, so the policy that learns them is cut off: give {max(lengths)} or more"
    )


def ended_by_tokens(groups: Sequence[Group], context_tokens: int, episode_tokens: int | None) -> str | None:
    """One sentence on the episodes that ended because a token limit left no room for another turn; None without any.

    Args:
        groups: of a rollout or an evaluation.
        context_tokens: the most tokens of a prompt and its response.
        episode_tokens: the most response tokens of an episode; None for no limit.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    ended = sum(trajectory.ended is Ended.TOKEN_LIMIT for trajectory in trajectories)
    if not ended:
        return None
    limits = f"data.context_tokens = {context_tokens:,}"
    if episode_tokens is not None:
        limits += f" or data.episode_tokens = {episode_tokens:,}"
    return (
        f"{ended:,} of {len(trajectories):,} episodes were ended by a token limit ({limits}), which left no room for "
        "another turn, and count as failures: raise it, or let data.context show fewer turns"
    )


def _excerpt(text: str) -> str:
    return repr(text) if len(text) <= _EXCERPT else f"{text[:_EXCERPT]!r}..."
