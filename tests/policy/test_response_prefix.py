"""A response prefix, and a tag that the template opens, belong to the prompt and to what the environment reads."""

import json
from pathlib import Path

import pytest
from published_templates import DEEPSEEK_R1, QWEN3, QWEN3_THINKING, published_tokenizer
from transformers import PreTrainedTokenizerFast

from tsr_lightning.batching.sequences import training_sequences
from tsr_lightning.engines.base import Sampling
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.envs.frozen_lake.env import TextFrozenLake
from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.chat import Chat
from tsr_lightning.policy.checks import check
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import PolicySpec, Scratch
from tsr_lightning.policy.vocabulary import make_tokenizer
from tsr_lightning.rng import Key
from tsr_lightning.rollout.demonstrations import Demonstrations
from tsr_lightning.search.driver import Driver, SearchTask
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Beam, Expert, Sample, Strategy
from tsr_lightning.trajectory import Message, Trajectory

CHATML, THINKING, R1 = (
    make_tokenizer(["Up <think>"]),
    published_tokenizer(QWEN3_THINKING),
    published_tokenizer(DEEPSEEK_R1),
)
USER, TOOL = Message("user", "Go"), Message("tool", "3")
SIZES = Scratch(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=1024
)


def play(tokenizer: PreTrainedTokenizerFast, prefix: str, strategy: Strategy, style: str = "paper") -> Trajectory:
    """An episode of an untrained policy, or of the oracle."""
    chat = Chat(tokenizer, response_prefix=prefix)
    policy = Policy(PolicySpec(SIZES), tokenizer, critic=False)
    engine = Transformers(kv_cache_mib=8).build(policy, chat.end_ids, 1024)
    env = TextFrozenLake(prompt_style=style, actions_per_turn=1, max_actions=3)
    driver = Driver([env], chat, engine, Sampling(1.0, 6), TokenLimits(1024))
    [trajectory] = driver.run([SearchTask(3, 0, strategy, Key(3))])
    return trajectory


@pytest.mark.parametrize("strategy", [Sample(), Beam(width=1, candidates=2)], ids=["sample", "beam"])
def test_sampled_responses_are_read_with_their_prefix_and_trained_without(strategy: Strategy):
    trajectory = play(CHATML, "<think>", strategy)
    ends = CHATML.encode("<|im_start|>assistant\n<think>", add_special_tokens=False)
    for turn in trajectory.turns:
        assert list(turn.prompt[-len(ends) :]) == ends
        assert turn.text == "<think>" + CHATML.decode(list(turn.response), skip_special_tokens=True)
    [sequence] = training_sequences(trajectory)  # one, so the prefix stays where it was in later prompts
    assert sequence.ids[sequence.mask].tolist() == [token for turn in trajectory.turns for token in turn.response]
    shown = CHATML.decode(list(trajectory.turns[-1].prompt))
    for turn in trajectory.turns[:-1]:
        assert f"<|im_start|>assistant\n{turn.text}<|im_end|>\n" in shown


@pytest.mark.parametrize(
    ("tokenizer", "prefix", "style", "begins", "sampled"),
    [
        (CHATML, "", "paper", "<think></think><answer>", "<think></think><answer>"),
        (CHATML, "<think>", "paper", "<think></think><answer>", "</think><answer>"),
        (CHATML, "<answer>", "brief", "<answer>", ""),
        (THINKING, "", "paper", "<think>\n</think><answer>", "</think><answer>"),
        (THINKING, "", "brief", "<think>\n\n</think>\n\n<answer>", "\n</think>\n\n<answer>"),
        (R1, "", "instruct", "<think>\n\n</think>\n\n", "\n</think>\n\n"),
    ],
)
def test_the_oracle_continues_what_its_prompt_begins(
    tokenizer: PreTrainedTokenizerFast, prefix: str, style: str, begins: str, sampled: str
):
    trajectory = play(tokenizer, prefix, Expert(), style)
    for turn in trajectory.turns:
        assert turn.text.startswith(begins)
        assert tokenizer.decode(list(turn.response)).startswith(sampled)
        assert turn.valid


def test_a_tag_that_only_some_prompts_open_begins_only_their_responses():
    chat = Chat(R1)
    ids = chat.write("so</think>Up")
    assert chat.read(ids, chat.prompt((), [USER])) == "<think>\nso</think>Up"
    assert chat.read(ids, chat.prompt((), [USER, TOOL])) == "so</think>Up"


def test_a_demonstration_is_trained_after_the_prefix(tmp_path: Path):
    path = tmp_path / "talks.jsonl"
    talk = [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "<think>so</think>Up"}]
    path.write_text(json.dumps({"messages": talk}) + "\n", encoding="utf-8")
    chat = Chat(CHATML, response_prefix="<think>")
    [group] = Demonstrations(str(path), count=1).groups(Key(1), 0, chat, 100)
    [turn] = group.trajectories[0].turns
    assert CHATML.decode(list(turn.prompt)).endswith("assistant\n<think>")
    assert CHATML.decode(list(turn.response)) == "so</think>Up<|im_end|>"
    assert turn.text == "<think>so</think>Up"
    refused = Chat(CHATML, response_prefix="<answer>")
    with pytest.raises(
        ConfigError, match=r"response_prefix is '<answer>': a demonstrated response begins with '<think>so"
    ):
        Demonstrations(str(path), count=1).check(refused, 100)


@pytest.mark.parametrize(
    ("tokenizer", "prefix", "arguments", "sentence"),
    [
        (THINKING, "<think>", {}, r"response_prefix is '<think>': the chat template of '' opens it already \("),
        (THINKING, "<think>\n", {}, r"response_prefix is '<think>\\n': the chat template of '' opens it already"),
        (R1, "<think>", {}, "response_prefix is '<think>': the chat template of '' opens it already"),
        (
            published_tokenizer(QWEN3),
            *("<think>", {"enable_thinking": False}),
            "response_prefix is '<think>': the chat template of '' opens it already",
        ),
        (
            CHATML,
            "",
            {"enable_thinking": False},
            "template_arguments.enable_thinking is False: the chat template of ''",
        ),
        (CHATML, "", {"messages": []}, "template_arguments.messages is .*: it is set for every prompt"),
        (CHATML, "", {"add_generation_prompt": False}, "template_arguments.add_generation_prompt is False: it is set"),
    ],
)
def test_what_a_template_has_or_lacks_is_refused(
    tokenizer: PreTrainedTokenizerFast, prefix: str, arguments: dict[str, object], sentence: str
):
    with pytest.raises(ConfigError, match=sentence):
        Chat(tokenizer, response_prefix=prefix, template_arguments=arguments)


def test_a_long_prefix_is_refused():
    with pytest.raises(ConfigError, match=r"model\.policy\.response_prefix is '1{49}': give at most 48 bytes"):
        check(PolicySpec(SIZES, response_prefix="1" * 49))
