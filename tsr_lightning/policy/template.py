"""What a chat template puts around the contents of a conversation. Knows strings and jinja, and no token id.

A template is rendered with placeholders for the contents, in characters that Unicode leaves to private use, and cut at
them. What remains is literal: the only text in which a control token may be spelled.
"""

import re
from collections.abc import Sequence

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from tsr_lightning.errors import ConfigError

# For a tokenizer without a template: "User:", "Assistant:", and the end token after what was said.
DEFAULT = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% elif message['role'] == 'user' %}{{ 'User:\n' + message['content'] + '\n\n' }}"
    "{% else %}{{ 'Assistant:\n' + message['content'] + eos_token + '\n\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:\n' }}{% endif %}"
)
_DAY = "26 Jul 2024"  # Llama's templates tell the date, and no prompt may depend on the day of the run
_PLACEHOLDER = re.compile("\ue000(\\d+)\ue001")
_THOUGHT = "<think>\n{}\n</think>\n\n{}"  # what some templates strip from earlier turns

Message = dict[str, str]


class Template:
    """A tokenizer's chat template.

    Args:
        tokenizer: whose template, or the default one where it has none.
    """

    has_system: bool  # otherwise the system text opens the first user message
    trims: bool  # takes the white space off the contents
    extends: bool  # a conversation that goes on begins with what it was, responses included

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._template = None if tokenizer.chat_template else DEFAULT
        self.has_system = self._knows_system()
        self.trims = f" {_place(0)} " not in self._render([_user(f" {_place(0)} ")], opens_response=True)
        self.extends = self._extends()

    def literals(self, turns: int, system: bool) -> list[str]:
        """What stands around the contents of a conversation with `turns` past turns, up to the response to come.

        The contents are the system text if there is one, then observation, response, observation and so on.
        """
        contents = [_place(index) for index in range(2 * turns + 1 + system)]
        return _cut(self._render(self._messages(contents, system), opens_response=True), len(contents))

    def ending(self) -> str:
        """What closes a conversation after its last response."""
        rendered = self._render([_user(_place(0)), _assistant(_place(1))], opens_response=False)
        return _cut(rendered, 2)[-1]

    def rewritten(self, response: str) -> str:
        """What the template makes of a response once it is an earlier turn."""
        _, opening, closing, _ = self.literals(1, system=False)
        messages = [_user(_place(0)), _assistant(response), _user(_place(1))]
        rendered = self._render(messages, opens_response=True)
        middle = rendered[rendered.index(_place(0)) + len(_place(0)) : rendered.rindex(_place(1))]
        fits = middle.startswith(opening) and middle.endswith(closing) and len(middle) >= len(opening) + len(closing)
        return middle[len(opening) : len(middle) - len(closing)] if fits else response

    def _knows_system(self) -> bool:
        try:
            self._render([_user(_place(0))], opens_response=True)
        except TemplateError as error:
            raise ConfigError(
                f"model.policy.model has a chat template that cannot be rendered ({error}): give its tokenizer another"
            ) from error
        try:
            rendered = self._render([_system(_place(0)), _user(_place(1))], opens_response=True)
        except TemplateError:
            return False
        return _PLACEHOLDER.findall(rendered) == ["0", "1"]

    def _extends(self) -> bool:
        said = [_THOUGHT.format(_place(100 + 2 * turn), _place(101 + 2 * turn)) for turn in range(3)]
        before = None
        for turns in range(4):
            contents = [said[index // 2] if index % 2 else _place(index) for index in range(2 * turns + 1)]
            rendered = self._render(self._messages(contents, system=False), opens_response=True)
            if before is not None:
                # blanks before a response are the policy's to say, as in "[/INST] Up" after the prompt "[/INST]"
                grown = rendered.startswith(before) and rendered[len(before) :].lstrip()
                if not grown or not grown.startswith(said[turns - 1]):
                    return False
            before = rendered
        return True

    def _messages(self, contents: Sequence[str], system: bool) -> list[Message]:
        first = [_system(contents[0])] if system and self.has_system else []
        rest = list(contents[system:])
        if system and not self.has_system:
            rest[0] = f"{contents[0]}\n\n{rest[0]}"
        return first + [_assistant(content) if index % 2 else _user(content) for index, content in enumerate(rest)]

    def _render(self, messages: list[Message], *, opens_response: bool) -> str:
        rendered = self._tokenizer.apply_chat_template(
            messages,
            chat_template=self._template,
            tokenize=False,
            add_generation_prompt=opens_response,
            date_string=_DAY,
        )
        assert isinstance(rendered, str)
        return rendered


def _cut(rendered: str, count: int) -> list[str]:
    parts = _PLACEHOLDER.split(rendered)
    if parts[1::2] != [str(index) for index in range(count)]:
        raise ConfigError(
            "model.policy.model has a chat template that leaves out, repeats or reorders messages: give its tokenizer "
            "one that renders every message once and in order"
        )
    return parts[::2]


def _place(index: int) -> str:
    return f"\ue000{index}\ue001"


def _system(content: str) -> Message:
    return {"role": "system", "content": content}


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}
