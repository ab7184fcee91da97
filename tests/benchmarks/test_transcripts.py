"""Language modelling on transcripts: which tokens are a policy's own."""

from pathlib import Path

import torch
import yaml
from commands import ROOT

from benchmarks.transcripts import (
    Transcripts,
    read_conversations,
    response_tokens,
    token_ids,
    write_conversations,
)
from tests.counter import Counter
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.outcome import reset
from tsr_lightning.policy.chat import Chat
from tsr_lightning.policy.vocabulary import make_tokenizer
from tsr_lightning.trajectory import Message

TOOLS = ROOT / "tsr_lightning/policy/embedded/swe/chat_template.jinja"


def test_the_tokens_of_responses_are_theirs_and_the_ends_alone() -> None:
    def conversation(*responses: str) -> list[dict[str, str]]:
        turns = [
            {"role": role, "content": text}
            for said in responses
            for role, text in (("user", "open"), ("assistant", said))
        ]
        return [{"role": "system", "content": "assistant\nopen box"}, *turns]

    rows = [conversation("go east", "open box"), conversation("take the old key from the box")]
    tokenizer = make_tokenizer(message["content"] for row in rows for message in row)
    ids = [torch.tensor(row) for row in tokenizer.apply_chat_template(rows, tokenize=True, return_dict=False)]
    batch = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=tokenizer.pad_token_id)
    header = torch.tensor(tokenizer.encode("<|im_start|>assistant\n"))
    marked = response_tokens(batch, header, tokenizer.eos_token_id)
    trained = [tokenizer.decode(row[mask].tolist()) for row, mask in zip(batch, marked, strict=True)]
    assert trained == ["go east<|im_end|>open box<|im_end|>", "take the old key from the box<|im_end|>"]


def test_the_share_of_noise_takes_the_place_of_the_configurations() -> None:
    """Without noise the commands of a scene are the oracle's plan, which wins and is as long as its shortest one."""
    config = yaml.safe_load((ROOT / "configs/warm_start/alfworld.yaml").read_text(encoding="utf-8"))
    exact, noisy = Transcripts(config, noise=0.0).draw(0), Transcripts(config).draw(0)
    assert [row[0] for row in exact] == [row[0] for row in noisy]  # the same scenes
    env = make_env(config["data"]["env"], **config["data"]["env_kwargs"])
    assert max(len(row) // 2 for row in exact) <= 11 < env.max_turns  # the longest plan of the documented sizes
    assert sum(map(len, noisy)) > 1.2 * sum(map(len, exact))


def test_conversations_with_tools_are_tokenised_as_in_a_rollout(tmp_path: Path) -> None:
    """Under ChatML, which does not show tools, and under a template that names them and their format."""
    for template, call_format in ((None, "hermes"), (TOOLS, "fenced")):
        tokenizer = make_tokenizer(["Add one. ```bash Tools call number"] * 2)
        if template is not None:
            tokenizer.chat_template = template.read_text(encoding="utf-8")
        chat = Chat(tokenizer)
        assert chat.call_format == call_format
        opening = reset(Counter(max_turns=9), 0, scored=False, call_format=call_format).messages
        conversation = [*opening, Message("assistant", "```add\n1\n```")]
        write_conversations(tmp_path / "written.jsonl", [conversation])
        [read] = read_conversations(tmp_path / "written.jsonl")
        assert read == conversation
        [ids] = token_ids(tokenizer, [read])
        prompt = chat.prompt([], opening)
        assert tuple(ids[: len(prompt)]) == prompt
        assert "Tools" in tokenizer.decode(ids)
