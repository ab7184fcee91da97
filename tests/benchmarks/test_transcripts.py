"""Language modelling on transcripts: which tokens are a policy's own."""

import torch
import yaml
from commands import ROOT

from benchmarks.transcripts import Transcripts, response_tokens
from tsr_lightning.envs.make import make_env
from tsr_lightning.policy.vocabulary import make_tokenizer


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
