"""The text that a chat template puts around the messages of a conversation. Knows strings and jinja, and no token id.

A template is rendered with placeholders for the contents, in private-use characters of Unicode, and split at them. The
rest is the template's own text: the only text in which a control token may be spelled.
"""

import re
from collections.abc import Sequence
from itertools import chain, cycle

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from tsr_lightning.errors import ConfigError, require

# For a tokenizer without a template: "User:", "Assistant:", and the end token after each response.
DEFAULT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% elif message['role'] == 'user' %}{{ 'User:\n' + message['content'] + '\n\n' }}"
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
        self._supports_system = True  # for the attempt to render one
        self._supports_system = self._renders_system()
        padded = f" {_placeholder(0)} "
        self.trims_contents = padded not in self._render([padded])
        self.is_prefix_preserving = self._preserves_prefixes()

    def fragments(self, turns: int, system: bool) -> list[str]:
        """The text around the contents of a conversation with `turns` past turns, up to the next response.

        The contents are the system text, if there is one, then observation, response, observation and so on.
        """
        contents = [_placeholder(index) for index in range(2 * turns + 1 + system)]
        return self._split(self._render(contents, system=system), len(contents))

    def closing(self) -> str:
        """The text after the last response of a conversation."""
        return self._split(self._render([_placeholder(0), _placeholder(1)], add_generation_prompt=False), 2)[-1]

    def rewritten(self, response: str) -> str:
        """A response as the template renders it in an earlier turn."""
        first, second = _placeholder(0), _placeholder(1)
        _, opening, closing, _ = self.fragments(1, system=False)
        rendered = self._render([first, response, second])
        middle = rendered[rendered.index(first) + len(first) : rendered.rindex(second)]
        fits = middle.startswith(opening) and middle.endswith(closing) and len(middle) >= len(opening) + len(closing)
        return middle[len(opening) : len(middle) - len(closing)] if fits else response

    def _renders_system(self) -> bool:
        """Whether the template takes a system message. Otherwise the system text opens the first user message."""
        try:
            self._render([_placeholder(0)])
        except TemplateError as error:
            raise ConfigError(
                f"model.policy.model is {self._tokenizer.name_or_path!r}: its chat template cannot be rendered "
                f"({error}), so give its tokenizer another one"
            ) from error
        try:
            rendered = self._render([_placeholder(0), _placeholder(1)], system=True)
        except TemplateError:
            return False
        return _PLACEHOLDER.findall(rendered) == ["0", "1"]

    def _preserves_prefixes(self) -> bool:
        responses = [_REASONING.format(_placeholder(100 + 2 * turn), _placeholder(101 + 2 * turn)) for turn in range(3)]
        before = None
        for turns in range(4):
            contents = [responses[i // 2] if i % 2 else _placeholder(i) for i in range(2 * turns + 1)]
            rendered = self._render(contents)
            if before is not None:
                # white space before a response is the policy's to generate, as in "[/INST] Up" after "[/INST]"
                added = rendered.startswith(before) and rendered[len(before) :].lstrip()
                if not added or not added.startswith(responses[turns - 1]):
                    return False
            before = rendered
        return True

    def _render(self, contents: Sequence[str], *, system: bool = False, add_generation_prompt: bool = True) -> str:
        """A conversation of the system text, if there is one, then observation, response, observation and so on."""
        if system and not self._supports_system:
            contents, system = [f"{contents[0]}\n\n{contents[1]}", *contents[2:]], False
        roles = chain(["system"] if system else [], cycle(["user", "assistant"]))
        rendered = self._tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)],
            chat_template=self._template,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            date_string=_DATE,
        )
        assert isinstance(rendered, str)
        return rendered

    def _split(self, rendered: str, placeholders: int) -> list[str]:
        parts = _PLACEHOLDER.split(rendered)
        require(
            parts[1::2] == [str(index) for index in range(placeholders)],
            "model.policy.model",
            self._tokenizer.name_or_path,
            "its chat template drops, repeats or reorders messages, so give its tokenizer one that renders each "
            "message once and in order",
        )
        return parts[::2]


def _placeholder(index: int) -> str:
    return f"\ue000{index}\ue001"
