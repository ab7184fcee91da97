"""Refuses responses and prompts that leave each other no room within the context."""

from tsr_lightning.errors import ConfigError


def check_response_room(response: int, limit: int) -> None:
    """Refuses a largest response that leaves no room for a prompt.

    Args:
        response: `data.sampling.max_response_tokens`.
        limit: tokens of a prompt and its response.
    """
    if response >= limit:
        raise ConfigError(
            f"data.sampling.max_response_tokens is {response}, which fills the context of {limit} tokens: lower it to "
            "leave room for the prompt"
        )


def check_prompt_room(env: str, prompt: int, limit: int, turn: int = 0, history: int = 0) -> None:
    """Refuses a prompt that leaves no room for a response.

    Args:
        env: id of its environment.
        prompt: its tokens.
        limit: tokens of a prompt and its response.
        turn: of the prompt, from 0.
        history: turns that the environment itself repeats in it.
    """
    if prompt < limit:
        return
    which = "first prompt" if turn == 0 else f"prompt of turn {turn + 1}, with the history that it repeats,"
    raise ConfigError(
        f"data.env is {env}, whose {which} has {prompt} tokens, which leaves no room for a response "
        f"within {limit}: use a model or data.context_tokens with a longer context"
        + ("" if turn == 0 else f", or an env_kwargs.history below {history}")
    )
