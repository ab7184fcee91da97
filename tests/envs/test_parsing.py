"""Responses are parsed in linear time, and as the regular expressions parse them that define the format."""

import itertools
import re
import signal
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsr_lightning.envs.text import PROMPT_STYLES, PromptStyle
from tsr_lightning.worlds.command_prompts import COMMAND_PROMPT_STYLES, parse_command
from tsr_lightning.worlds.webshop.pages import verb_and_argument
from tsr_lightning.worlds.webshop.prompts import ORIGINAL, SHOP_PROMPT_STYLES, parse_action
from tsr_lightning.worlds.webshop.tokens import words

# the definitions, which take cubic or quadratic time
BY_PATTERN = {
    "paper": re.compile(r"<think>.*?</think>\s*<answer>(.*?)</answer>", re.DOTALL),
    "brief": re.compile(r"<answer>(.*?)</answer>", re.DOTALL),
    "bare": re.compile(r"<answer>(.*?)</answer>", re.DOTALL),
}
ACTION = re.compile(r"(.+)\[(.+)\]")
WORDS = re.compile(r"_*[a-z0-9][a-z0-9_]*(?:(?:(?<=[a-z])[:.'](?=[a-z])|(?<=[0-9])[,;.'](?=[0-9]))[a-z0-9_]+)*")

PIECES = ("<think>", "</think>", "<answer>", "</answer>", "a", "\n ")
CHARACTERS = ("search", "click", "[", "]", "A", "\n")
SECONDS = 60  # of this process; it takes milliseconds, and the patterns above take minutes to hours


def found(text: str, prompt_style: PromptStyle) -> str | None:
    return prompt_style.reader.find(text, prompt_style.marks)


def by_pattern(text: str, name: str) -> str | None:
    found = BY_PATTERN[name].findall(text)
    return found[-1] if found else None


def action_by_pattern(text: str) -> tuple[str, str] | None:
    found = ACTION.match(text)
    return (found[1], found[2].lower()) if found and found[1] in ("search", "click") else None


@pytest.mark.parametrize("name", BY_PATTERN)
def test_every_short_response_is_parsed_as_by_the_pattern(name: str) -> None:
    for length in range(6):
        for pieces in itertools.product(PIECES, repeat=length):
            text = "".join(pieces)
            assert found(text, PROMPT_STYLES[name]) == by_pattern(text, name), text


@given(st.lists(st.sampled_from([*PIECES, "<", ">", "/", "think", "answer", "||", "\u2003", "\x1c"]), max_size=40))
def test_longer_responses_are_parsed_as_by_the_pattern(pieces: list[str]) -> None:
    text = "".join(pieces)
    for name in BY_PATTERN:
        assert found(text, PROMPT_STYLES[name]) == by_pattern(text, name)
    assert found(text, ORIGINAL) == text


def test_every_short_action_is_parsed_as_by_the_pattern() -> None:
    for length in range(8):
        for characters in itertools.product(CHARACTERS, repeat=length):
            text = "".join(characters)
            assert verb_and_argument(text) == action_by_pattern(text), text


def test_every_short_query_is_split_as_by_the_pattern() -> None:
    for length in range(9):
        for characters in itertools.product("_a1.", repeat=length):
            text = "".join(characters)
            assert words(text) == WORDS.findall(text), text


@pytest.fixture
def limit() -> Iterator[None]:
    """Fails the test after SECONDS of this process's own time, whatever else the machine does."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {SECONDS} seconds of processor time: this is not linear")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


UNITS = ("<think>", "</think>", "<answer>", "</answer>", "<think></think><answer>", "<think></think>", "</think> ", " ")
PARSERS: list[Callable[[str], object]] = [
    *(partial(parse_action, prompt_style=prompt_style) for prompt_style in SHOP_PROMPT_STYLES.values()),
    *(partial(parse_command, prompt_style=prompt_style) for prompt_style in COMMAND_PROMPT_STYLES.values()),
    verb_and_argument,
    words,
]


@pytest.mark.parametrize("unit", [*UNITS, "[", "]", "[]", "search[", "||", "_", "a_", "a.", "\u200d", "-"])
def test_long_responses_are_parsed_in_linear_time(unit: str, limit: None) -> None:
    text = unit * (200_000 // len(unit))
    for parse in PARSERS:
        for response in (text, f"search[{text}]", f"<answer>search[{text}", f"<think></think><answer>{text}é"):
            parse(response)


@pytest.mark.parametrize("id", ["tsr/ALFWorld-v0", "tsr/FrozenLake-v0", "tsr/Sokoban-v0", "tsr/WebShop-v0"])
@pytest.mark.parametrize("prompt_style", PROMPT_STYLES)
def test_environments_take_their_longest_responses_in_linear_time(id: str, prompt_style: str, limit: None) -> None:
    env = gymnasium.make(id, disable_env_checker=True, prompt_style=prompt_style).unwrapped
    for unit in UNITS:
        for form in ("{}", "<think></think><answer>{}</answer>", "<think></think><answer>search[{}]</answer>"):
            env.reset(seed=0)
            env.step(form.format(unit * (8000 // len(unit))))
