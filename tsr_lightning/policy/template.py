"""The text that a chat template puts around the messages of a conversation. Knows strings and jinja, and no token id.

A template is rendered with placeholders for the contents, in private-use characters of Unicode, and split at them. The
rest is the template's own text: the only text in which a control token may be spelled.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from inspect import signature
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.policy.plain import spelled_control
from tsr_lightning.tool_calls import CALL_FORMATS, CallFormatName

# For a tokenizer without a template: "User:", "Assistant:", and the end token after each response. It begins with the
# token that the tokenizer itself begins a text with, if any.
DEFAULT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% elif message['role'] != 'assistant' %}{{ message['role'] | capitalize + ':\n' + message['content'] + '\n\n' }}"
    "{% else %}{{ 'Assistant:\n' + message['content'] + eos_token + '\n\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:\n' }}{% endif %}"
)
_BEGINNING = "{{ bos_token }}"
_TODAY = datetime(2024, 7, 26)  # Llama's and SmolLM3's templates print the date: no prompt may depend on the run's day
_STRFTIME = re.compile(r"""strftime_now\(\s*(?P<quote>["'])(?P<format>.*?)(?P=quote)\s*\)""")
_PLACEHOLDER = re.compile("\ue000(\\d+)\ue001")
_RESPONSES = ("<think>\n{}\n</think>\n\n{}", "{}{}")  # some templates strip the reasoning, some add an empty one
_OPEN_TAG = re.compile(r"<\w+>\s*\Z")
_SPELLED = 10**6  # the first number of a placeholder of a spelled control token
_PROBE = "probe"
_PROBED_TOOL = {
    "name": _PROBE,
    "description": _PROBE,
    "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": _PROBE}}, "required": ["x"]},
}
_PROBED_CALL = {"name": _PROBE, "arguments": {"x": "y"}}
_WRITINGS: tuple[Callable[[str], str], ...] = (str, str.strip, lambda text: json.dumps(text, ensure_ascii=False)[1:-1])
_SET_HERE = {"messages", "date_string", *signature(PreTrainedTokenizerFast.apply_chat_template).parameters}


def _default(tokenizer: PreTrainedTokenizerFast) -> str:
    begins = tokenizer.bos_token_id is not None and tokenizer.encode("x")[:1] == [tokenizer.bos_token_id]
    return f"{_BEGINNING if begins else ''}{DEFAULT_TEMPLATE}"


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


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation up to the next response, with placeholders.

    Args:
        text: the template's and the policy's.
        spelled: control tokens that the policy's text spells, in their order.
    """

    text: str
    spelled: tuple[str, ...]

    def parts(self, begin: int = 0) -> tuple[list[str], list[Content | Spelled]]:
        """Text, and the contents and spelled control tokens between, from a place on: [K + 1] and [K]."""
        found = _PLACEHOLDER.split(self.text[begin:])
        numbers = map(int, found[1::2])
        return found[::2], [
            Content(number) if number < _SPELLED else Spelled(self.spelled[number - _SPELLED]) for number in numbers
        ]


class ChatTemplate:
    """A tokenizer's chat template.

    Args:
        tokenizer: with a template, or without one for the default.
        arguments: of the template, by name.
        response_prefix: follows the template's text before a response.
    """

    text: str  # the tokenizer's, or the default, on the day that all prompts show
    opened: str  # a tag, such as "<think>\n", that begins a response and is written in the prompt
    is_prefix_preserving: bool  # each prompt begins with the prompt before it and that turn's response
    call_format: CallFormatName | None  # in which it shows calls; None where it offers no tools, or in another format

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, arguments: Mapping[str, Any] | None = None, response_prefix: str = ""
    ) -> None:
        self._tokenizer = tokenizer
        self._arguments = dict(arguments or {})
        self._prefix = ""
        own = tokenizer.get_chat_template() if tokenizer.chat_template else _default(tokenizer)
        self.text = _STRFTIME.sub(lambda match: repr(_TODAY.strftime(match["format"])), own)
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
        self.call_format = self._find_call_format()
        self._write, self._write_tools = self._writing(["user"]), self._writing(["user", "assistant", "tool"])
        self.is_prefix_preserving = self._preserves_prefixes()

    def written(self, role: str, content: str) -> str:
        """A content as the template writes it: some strip white space, and some quote a tool's answer as JSON."""
        return self._write_tools(content) if role == "tool" else self._write(content)

    def fragments(self, roles: Sequence[str], tools: str = "", *, add_generation_prompt: bool = True) -> list[str]:
        """The text around the contents of a conversation of M messages: [M + 1].

        Args:
            roles: [M] of the messages. A leading system message that the template does not take opens the user message
                after it, or is one.
            tools: schemas of what is offered, as JSON; "" for none.
            add_generation_prompt: whether the last fragment goes up to the next response.
        """
        contents = [_placeholder(index) for index in range(len(roles))]
        rendered = self._render(roles, contents, tools, add_generation_prompt=add_generation_prompt)
        parts = _PLACEHOLDER.split(rendered)
        self._require_all([int(number) for number in parts[1::2]], list(range(len(roles))))
        return parts[::2]

    def conversation(self, roles: Sequence[str], contents: Sequence[str | None], tools: str = "") -> Rendered:
        """A conversation up to the next response, rendered with the texts that the template may rewrite.

        Args:
            roles: [M] of the messages.
            contents: [M] texts of the policy, or None for those that the template only surrounds.
            tools: schemas of what is offered, as JSON; "" for none.
        """
        spelled: list[str] = []

        def hide(match: re.Match[str]) -> str:
            spelled.append(match[0])
            return _placeholder(_SPELLED + len(spelled) - 1)

        shown = [_placeholder(i) if text is None else self._hidden.sub(hide, text) for i, text in enumerate(contents)]
        rendered = Rendered(self._render(roles, shown, tools), tuple(spelled))
        self._require_all(
            [mark.message for mark in rendered.parts()[1] if isinstance(mark, Content)],
            [index for index, text in enumerate(contents) if text is None],
        )
        return rendered

    def _check_arguments(self) -> None:
        for name in self._arguments:
            key = f"model.policy.template_arguments.{name}"
            require(name not in _SET_HERE, key, self._arguments[name], "it is set for every prompt, so leave it out")
            remedy = f"the chat template of {self._tokenizer.name_or_path!r} does not mention it, so leave it out"
            is_mentioned = re.search(rf"\b{re.escape(name)}\b", self.text)
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

    def _find_call_format(self) -> CallFormatName | None:
        """The format that the template writes a call in, if it shows tools at all."""
        tools = json.dumps([{"type": "function", "function": _PROBED_TOOL}])
        calls = [{"type": "function", "function": _PROBED_CALL}]
        try:
            if _PROBE not in self._render(["user"], [_placeholder(0)], tools):
                return None
            called = {"role": "assistant", "content": "", "tool_calls": calls}
            shown = self._apply([{"role": "user", "content": "x"}, called], tools, add_generation_prompt=False)
        except ConfigError:
            return None
        written = {name: known.write(_PROBE, {"x": "y"}) for name, known in CALL_FORMATS.items()}
        return next((name for name, call in written.items() if call in shown), None)

    def _writing(self, roles: Sequence[str]) -> Callable[[str], str]:
        """What the template does to the content of the last of these roles."""
        contents = [_placeholder(number) for number in range(len(roles) - 1)]
        probe = f' {_placeholder(8)}"\n{_placeholder(9)} '
        try:
            rendered = self._render(roles, [*contents, probe])
        except ConfigError:  # a role that it does not take
            return str
        return next((writing for writing in _WRITINGS if writing(probe) in rendered), str)

    def _preserves_prefixes(self) -> bool:
        return all(self._preserves(form, role) for form in _RESPONSES for role in ("user", "tool"))

    def _preserves(self, form: str, role: str) -> bool:
        """Whether a response of this form stays as it is once messages of a role follow."""
        roles, contents = ["user"], [_placeholder(0)]
        before = self._render(roles, contents)
        for turn in range(1, 4):
            response = form.format(_placeholder(100 * turn), _placeholder(100 * turn + 1))
            response = response.removeprefix(self.opened + self._prefix)
            roles += ["assistant", role]
            contents += [self.opened + self._prefix + response, _placeholder(turn)]
            try:
                rendered = self._render(roles, contents)
            except ConfigError:  # a role that it does not take
                return role == "tool"
            # white space before a response is the policy's to generate, as in "[/INST] Up" after "[/INST]"
            if not rendered.startswith(before) or not rendered[len(before) :].lstrip().startswith(response):
                return False
            before = rendered
        return True

    def _render(
        self, roles: Sequence[str], contents: Sequence[str], tools: str = "", *, add_generation_prompt: bool = True
    ) -> str:
        if not self._supports_system and roles[0] == "system":
            roles = ["user", *roles[1:]]
            if roles[1:2] == ["user"]:
                roles, contents = roles[1:], [f"{contents[0]}\n\n{contents[1]}", *contents[2:]]
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        return self._apply(messages, tools, add_generation_prompt=add_generation_prompt)

    def _apply(self, messages: list[dict[str, Any]], tools: str, *, add_generation_prompt: bool) -> str:
        try:
            rendered = self._tokenizer.apply_chat_template(
                messages,
                tools=json.loads(tools) if tools else None,
                chat_template=self.text,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                date_string=_TODAY.strftime("%d %b %Y"),
                **self._arguments,
            )
        except (TemplateError, TypeError) as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ConfigError(
                f"model.policy.model is {self._tokenizer.name_or_path!r}: its chat template cannot render messages of "
                f"the roles {roles} ({error}), so give its tokenizer another one"
            ) from error
        assert isinstance(rendered, str)
        return rendered + self._prefix if add_generation_prompt else rendered


def _placeholder(index: int) -> str:
    return f"\ue000{index}\ue001"
