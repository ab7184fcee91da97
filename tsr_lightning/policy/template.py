"""The text that a chat template puts around the messages of a conversation. Knows strings and jinja, and no token id.

A template is rendered with placeholders for the contents, in private-use characters of Unicode, and split at them. The
rest is the template's own text: the only text in which a control token may be spelled.
"""

import re
from collections.abc import Sequence

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from tsr_lightning.errors import ConfigError, require

# For a tokenizer without a template: "User:", "Assistant:", and the end token after each response.
DEFAULT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% elif message['role'] != 'assistant' %}{{ message['role'] | capitalize + ':\n' + message['content'] + '\n\n' }}"
    "{% else %}{{ 'Assistant:\n' + message['content'] + eos_token + '\n\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:\n' }}{% endif %}"
)
_DATE = "26 Jul 2024"  # Llama's templates print the date, and no prompt may depend on the day of the run
_PLACEHOLDER = re.compile("\ue000(\\d+)\ue001")
_REASONING = "<think>\n{}\n</think>\n\n{}"  # which some templates strip from earlier turns


class ChatTemplate:
    """A tokenizer's chat template.

    Args:
        tokenizer: with a template, or without one for the default.
    """

    trims_contents: bool  # strips white space from the contents
    is_prefix_preserving: bool  # each prompt begins with the prompt before it and that turn's response

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._template = None if tokenizer.chat_template else DEFAULT_TEMPLATE
        self._supports_system = True
        try:
            self.fragments(["system", "user"])
        except ConfigError:
            self._supports_system = False
        padded = f" {_placeholder(0)} "
        self.trims_contents = padded not in self._render(["user"], [padded])
        self.is_prefix_preserving = self._preserves_prefixes()

    def fragments(self, roles: Sequence[str], *, add_generation_prompt: bool = True) -> list[str]:
        """The text around the contents of a conversation of M messages: [M + 1].

        Args:
            roles: [M] of the messages. A leading system message that the template does not take opens the user message
                after it, or is one.
            add_generation_prompt: whether the last fragment goes up to the next response.
        """
        contents = [_placeholder(index) for index in range(len(roles))]
        rendered = self._render(roles, contents, add_generation_prompt=add_generation_prompt)
        parts = _PLACEHOLDER.split(rendered)
        require(
            parts[1::2] == [str(index) for index in range(len(roles))],
            "model.policy.model",
            self._tokenizer.name_or_path,
            "its chat template drops, repeats or reorders messages, so give its tokenizer one that renders each "
            "message once and in order",
        )
        return parts[::2]

    def rewritten(self, response: str, later: Sequence[str] = ("user",)) -> str:
        """A response as the template renders it in an earlier turn.

        Args:
            response: its text.
            later: roles of the messages that follow it, of which the template may look at the next (a tool's keeps the
                reasoning that a user's drops) and at any later one (Qwen3 drops it before the last user's message).
        """
        roles = ["user", "assistant", *later]
        first, second = _placeholder(0), _placeholder(1)
        _, opening, closing, *_ = self.fragments(roles)
        rendered = self._render(roles, [first, response, second, *(_placeholder(i) for i in range(2, 1 + len(later)))])
        middle = rendered[rendered.index(first) + len(first) : rendered.rindex(second)]
        fits = middle.startswith(opening) and middle.endswith(closing) and len(middle) >= len(opening) + len(closing)
        return middle[len(opening) : len(middle) - len(closing)] if fits else response

    def _preserves_prefixes(self) -> bool:
        roles, contents = ["user"], [_placeholder(0)]
        before = self._render(roles, contents)
        for turn in range(1, 4):
            response = _REASONING.format(_placeholder(100 * turn), _placeholder(100 * turn + 1))
            roles += ["assistant", "user"]
            contents += [response, _placeholder(turn)]
            rendered = self._render(roles, contents)
            # white space before a response is the policy's to generate, as in "[/INST] Up" after "[/INST]"
            if not rendered.startswith(before) or not rendered[len(before) :].lstrip().startswith(response):
                return False
            before = rendered
        return True

    def _render(self, roles: Sequence[str], contents: Sequence[str], *, add_generation_prompt: bool = True) -> str:
        if not self._supports_system and roles[0] == "system":
            roles = ["user", *roles[1:]]
            if roles[1:2] == ["user"]:
                roles, contents = roles[1:], [f"{contents[0]}\n\n{contents[1]}", *contents[2:]]
        try:
            rendered = self._tokenizer.apply_chat_template(
                [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)],
                chat_template=self._template,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                date_string=_DATE,
            )
        except TemplateError as error:
            raise ConfigError(
                f"model.policy.model is {self._tokenizer.name_or_path!r}: its chat template cannot render messages of "
                f"the roles {', '.join(roles)} ({error}), so give its tokenizer another one"
            ) from error
        assert isinstance(rendered, str)
        return rendered


def _placeholder(index: int) -> str:
    return f"\ue000{index}\ue001"
