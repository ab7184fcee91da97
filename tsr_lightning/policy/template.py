"""The text that a chat template puts around the messages of a conversation. Knows strings and jinja, and no token id.

A template is rendered with placeholders for the contents, in private-use characters of Unicode, and split at them. The
rest is the template's own text: the only text in which a control token may be spelled.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from inspect import signature
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.policy.plain import spelled_control

# For a tokenizer without a template: "User:", "Assistant:", and the end token after each response.
DEFAULT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% elif message['role'] != 'assistant' %}{{ message['role'] | capitalize + ':\n' + message['content'] + '\n\n' }}"
    "{% else %}{{ 'Assistant:\n' + message['content'] + eos_token + '\n\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:\n' }}{% endif %}"
)
_TODAY = datetime(2024, 7, 26)  # Llama's and SmolLM3's templates print the date: no prompt may depend on the run's day
_STRFTIME = re.compile(r"""strftime_now\(\s*(?P<quote>["'])(?P<format>.*?)(?P=quote)\s*\)""")
_PLACEHOLDER = re.compile("\ue000(\\d+)\ue001")
_RESPONSES = ("<think>\n{}\n</think>\n\n{}", "{}{}")  # some templates strip the reasoning, some add an empty one
_OPEN_TAG = re.compile(r"<\w+>\s*\Z")
_SET_HERE = {"messages", "date_string", *signature(PreTrainedTokenizerFast.apply_chat_template).parameters}


@dataclass(frozen=True, slots=True)
class Content:
    """Stands in a rendered conversation for the content of a message.

    Args:
        message: its index.
    """

    message: int


@dataclass(frozen=True, slots=True)
class Spelled:
    """Stands in a rendered conversation for text of the policy that must yield no control token."""

    text: str


class ChatTemplate:
    """A tokenizer's chat template.

    Args:
        tokenizer: with a template, or without one for the default.
        arguments: of the template, by name.
        response_prefix: follows the template's text before a response.
    """

    opened: str  # a tag, such as "<think>\n", that begins a response and is written in the prompt
    trims_contents: bool  # strips white space from the contents
    is_prefix_preserving: bool  # each prompt begins with the prompt before it and that turn's response

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, arguments: Mapping[str, Any] | None = None, response_prefix: str = ""
    ) -> None:
        self._tokenizer = tokenizer
        self._arguments = dict(arguments or {})
        self._prefix = ""
        own = tokenizer.get_chat_template() if tokenizer.chat_template else DEFAULT_TEMPLATE
        self._template = _STRFTIME.sub(lambda match: repr(_TODAY.strftime(match["format"])), own)
        self._check_arguments()
        # of a text, what may not reach the template: control tokens, and what placeholders are made of
        self._hidden = re.compile(f"[\ue000\ue001]|{spelled_control(tokenizer).pattern}")
        self._supports_system = True
        try:
            self.fragments(["system", "user"])
        except ConfigError:
            self._supports_system = False
        self.opened = self._opened()
        self._check_prefix(response_prefix)
        self._prefix = response_prefix
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
        self._require_all([int(number) for number in parts[1::2]], list(range(len(roles))))
        return parts[::2]

    def conversation(self, roles: Sequence[str], contents: Sequence[str | None]) -> list[str | Content | Spelled]:
        """A conversation up to the next response, rendered with the texts that the template may rewrite.

        Args:
            roles: [M] of the messages.
            contents: [M] texts of the policy, or None for those that the template only surrounds.

        Returns:
            Text that is the template's or the policy's, with the other contents, and the policy's spelled control
            tokens, between.
        """
        count = len(roles)
        spelled: list[str] = []

        def hide(match: re.Match[str]) -> str:
            spelled.append(match[0])
            return _placeholder(count + len(spelled) - 1)

        shown = [_placeholder(i) if text is None else self._hidden.sub(hide, text) for i, text in enumerate(contents)]
        parts = _PLACEHOLDER.split(self._render(roles, shown))
        numbers = [int(number) for number in parts[1::2]]
        self._require_all(
            [number for number in numbers if number < count],
            [index for index, text in enumerate(contents) if text is None],
        )
        found: list[str | Content | Spelled] = [parts[0]]
        for number, text in zip(numbers, parts[2::2], strict=True):
            found += [Content(number) if number < count else Spelled(spelled[number - count]), text]
        return found

    def _check_arguments(self) -> None:
        for name in self._arguments:
            key = f"model.policy.template_arguments.{name}"
            require(name not in _SET_HERE, key, self._arguments[name], "it is set for every prompt, so leave it out")
            remedy = f"the chat template of {self._tokenizer.name_or_path!r} does not mention it, so leave it out"
            is_mentioned = re.search(rf"\b{re.escape(name)}\b", self._template)
            require(is_mentioned is not None, key, self._arguments[name], remedy)

    def _check_prefix(self, prefix: str) -> None:
        if not prefix.strip():
            return
        before = self.fragments(["user"])[-1]
        tag = _OPEN_TAG.fullmatch(prefix.strip())
        is_open = before.rstrip().endswith(prefix.strip()) or (tag is not None and tag[0] in before)
        shown = before if len(before) <= 40 else f"…{before[-40:]}"
        remedy = f"the chat template of {self._tokenizer.name_or_path!r} opens it already ({shown!r}), so leave it out"
        require(not is_open, "model.policy.response_prefix", prefix, remedy)

    def _opened(self) -> str:
        """The tag at the end of the generation prompt that is none of the template's own before a response."""
        tag = _OPEN_TAG.search(self.fragments(["user"])[-1])
        if tag is None or self.fragments(["user", "assistant", "user"])[1].endswith(tag[0]):
            return ""
        return tag[0]

    def _require_all(self, found: list[int], expected: list[int]) -> None:
        require(
            found == expected,
            "model.policy.model",
            self._tokenizer.name_or_path,
            "its chat template drops, repeats or reorders messages, so give its tokenizer one that renders each "
            "message once and in order",
        )

    def _preserves_prefixes(self) -> bool:
        return all(self._preserves(response) for response in _RESPONSES)

    def _preserves(self, form: str) -> bool:
        roles, contents = ["user"], [_placeholder(0)]
        before = self._render(roles, contents)
        for turn in range(1, 4):
            response = form.format(_placeholder(100 * turn), _placeholder(100 * turn + 1))
            response = response.removeprefix(self.opened + self._prefix)
            roles += ["assistant", "user"]
            contents += [self.opened + self._prefix + response, _placeholder(turn)]
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
                date_string=_TODAY.strftime("%d %b %Y"),
                **self._arguments,
            )
        except TemplateError as error:
            raise ConfigError(
                f"model.policy.model is {self._tokenizer.name_or_path!r}: its chat template cannot render messages of "
                f"the roles {', '.join(roles)} ({error}), so give its tokenizer another one"
            ) from error
        assert isinstance(rendered, str)
        return rendered + self._prefix if add_generation_prompt else rendered


def _placeholder(index: int) -> str:
    return f"\ue000{index}\ue001"
