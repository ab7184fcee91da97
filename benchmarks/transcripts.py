"""Teaches a new small model the language of a task: language modelling on transcripts of its oracle, on every token.

    python -m benchmarks.transcripts configs/warm_start/alfworld.yaml --updates 700 --output lm

The first stage of a policy that copies names, such as `embedded/alfworld`; `tsr fit` with the same configuration and
`--model.policy.model lm` is the second. The configuration gives environment, sizes, context, the oracle's noise,
the held-out instances, none of which is played, and the seed.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tsr_lightning.envs.base import Branchable, HasOracle
from tsr_lightning.envs.make import make_env
from tsr_lightning.policy.architecture import small_config
from tsr_lightning.policy.spec import Scratch
from tsr_lightning.policy.vocabulary import make_tokenizer
from tsr_lightning.rng import Key
from tsr_lightning.training.instances import HeldOut, Instances

Message = dict[str, str]

EPISODES = 64  # per draw of instances, which batches of like length are made from


class Transcripts:
    """Episodes of a noisy oracle, as conversations.

    Args:
        config: a configuration of a supervised warm start.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        data = config["data"]
        self._env: Branchable = make_env(data["env"], **data["env_kwargs"])
        self._noise: float = data["plan"]["init_args"]["strategy"]["init_args"]["noise"]
        self._single = data["context"]["class_path"] == "SingleTurn"
        self._key = Key(config["seed_everything"]).fold_in("transcripts")
        self._instances = Instances([self._env], self._key, HeldOut(**data["held_out"]))

    def draw(self, number: int) -> list[list[Message]]:
        """The conversations of a number of episodes; each turn is one of its own in a context of single turns."""
        drawn: list[list[Message]] = []
        for place, instance in enumerate(self._instances.training(number, EPISODES).instances):
            assert instance is not None  # only a guard leaves instances out
            turns = list(self._episode(instance[1], self._key.fold_in(number, place)))
            drawn += turns if self._single else [[message for turn in turns for message in turn]]
        return drawn

    def _episode(self, seed: int, key: Key) -> Iterator[list[Message]]:
        env, done, turn = self._env, False, 0
        assert isinstance(env, HasOracle)
        observation, _ = env.reset(seed=seed)
        env.reseed(key)
        while not done:
            response = env.oracle(self._noise, key.fold_in(turn))
            yield [{"role": "user", "content": str(observation)}, {"role": "assistant", "content": response}]
            observation, _, terminated, truncated, _ = env.step(response)
            turn, done = turn + 1, terminated or truncated


def batches(
    transcripts: Transcripts, tokenizer: PreTrainedTokenizerFast, tokens: int, key: Key
) -> Iterator[list[list[int]]]:
    """Batches of token ids, each of conversations of like length and of at most `tokens` with their padding."""
    number = 0
    while True:
        rows = tokenizer.apply_chat_template(transcripts.draw(number), tokenize=True, return_dict=False)
        batch: list[list[int]] = []
        made: list[list[list[int]]] = []
        for row in sorted((row[:tokens] for row in rows), key=len):
            if batch and (len(batch) + 1) * len(row) > tokens:
                made.append(batch)
                batch = []
            batch.append(row)
        made.append(batch)
        for index in _permutation(len(made), key.fold_in("batches", number)):
            yield made[index]
        number += 1


def _permutation(count: int, key: Key) -> list[int]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(key.bits() >> 1)).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="a configuration of a supervised warm start with a new model")
    parser.add_argument("--updates", type=int, required=True, help="of AdamW")
    parser.add_argument("--tokens", type=int, default=4096, help="most tokens of an update")
    parser.add_argument("--learning_rate", type=float, default=2e-3, help="reached after 50 updates")
    parser.add_argument("--vocabulary", type=int, default=1024, help="most entries of the tokenizer")
    parser.add_argument("--output", type=Path, required=True, help="a folder, which transformers can read")
    arguments = parser.parse_args()

    config = yaml.safe_load(arguments.config.read_text())
    transcripts, key = Transcripts(config), Key(config["seed_everything"]).fold_in("language model")
    texts = [message["content"] for number in range(8) for row in transcripts.draw(number) for message in row]
    tokenizer = make_tokenizer(texts, arguments.vocabulary)
    torch.manual_seed(config["seed_everything"])
    model = AutoModelForCausalLM.from_config(small_config(Scratch(**config["model"]["policy"]["model"]), tokenizer))
    print(f"{len(tokenizer)} entries, {sum(map(torch.numel, model.parameters())):,} parameters")

    optimizer = torch.optim.AdamW(model.parameters(), arguments.learning_rate, weight_decay=0.0)
    drawn, begun, seen, rows_seen = batches(transcripts, tokenizer, arguments.tokens, key), time.process_time(), 0, 0
    for update in range(arguments.updates):
        optimizer.param_groups[0]["lr"] = arguments.learning_rate * min(1.0, (update + 1) / 50)
        rows = [torch.tensor(row) for row in next(drawn)]
        pad = tokenizer.pad_token_id
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)  # ends alone are padded
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=pad)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen, rows_seen = seen + sum(map(len, rows)), rows_seen + len(rows)
        if (update + 1) % 25 == 0:
            seconds = time.process_time() - begun
            print(f"{update + 1}: loss {loss.item():.3f}, {rows_seen} rows, {seen} tokens, {seconds:.0f} s", flush=True)
        if (update + 1) % 200 == 0 or update + 1 == arguments.updates:
            model.save_pretrained(arguments.output)
            tokenizer.save_pretrained(arguments.output)


if __name__ == "__main__":
    main()
