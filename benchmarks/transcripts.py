"""Teaches a new small model the language of a task: language modelling on transcripts of its oracle, on every token.

    python -m benchmarks.transcripts configs/warm_start/alfworld.yaml --updates 700 --output lm

The first stage of a policy that copies names, such as `embedded/alfworld`; `tsr fit` with the same configuration and
`--model.policy.model lm` is the second. The configuration gives environment, sizes, context, the oracle's noise,
the held-out instances, none of which is played, and the seed. Of a file of conversations (`--conversations`) these are
learnt instead, and the environment gives text to the vocabulary alone.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tsr_lightning.cli.config_files import read_config
from tsr_lightning.envs.base import Branchable, HasOracle
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.playing import advance, begin
from tsr_lightning.policy.architecture import small_config
from tsr_lightning.policy.offer import offered
from tsr_lightning.policy.spec import Scratch
from tsr_lightning.policy.template import ChatTemplate
from tsr_lightning.policy.vocabulary import make_tokenizer
from tsr_lightning.rng import Key
from tsr_lightning.rollout.instances import HeldOut, Instances
from tsr_lightning.trajectory import Message

Batch = tuple[list[list[int]], int]  # rows of token ids, and how many of each row's are read and not learnt
Draw = Callable[[int], list[list[Message]]]  # the conversations of a number, always the same

SHORTEST_PIECE, LONGEST_PIECE = 8, 24  # tokens of what is said twice
SPECIAL = 3  # tokens at the end of a small model's vocabulary
SEED = 1  # of a configuration that gives none, as for `tsr fit`
EPISODES = 64  # per draw of instances, which batches of like length are made from


class Transcripts:
    """Episodes of a noisy oracle, as conversations.

    Args:
        config: a configuration of a supervised warm start.
        noise: share of the oracle's actions that are random; None takes the configuration's.
    """

    def __init__(self, config: dict[str, Any], noise: float | None = None) -> None:
        data = config["data"]
        self._env: Branchable = make_env(data["env"], **data["env_kwargs"])
        configured: float = data["plan"]["init_args"]["strategy"]["init_args"]["noise"]
        self._noise = configured if noise is None else noise
        self._single = data["context"]["class_path"] == "SingleTurn"
        self._key = Key(config.get("seed_everything", SEED)).fold_in("transcripts")
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
        env = self._env
        assert isinstance(env, HasOracle)
        opening = begin(env, seed, key)
        system = [Message("system", opening.instructions)] if opening.instructions else []
        always = [*system, *(message for message in opening.messages if message.role == "tools")]
        shown, messages, done, turn = system, opening.messages, False, 0
        while not done:
            response = env.oracle(self._noise, key.fold_in(turn))
            yield [*shown, *messages, Message("assistant", response)]
            shown, turn = always if self._single else [], turn + 1
            messages, done = advance(env, seed, response)


def read_conversations(path: Path) -> list[list[Message]]:
    """Those of a JSONL file, `{"messages": [...]}` a line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [[Message(**message) for message in json.loads(line)["messages"]] for line in lines]


def write_conversations(path: Path, conversations: Iterable[list[Message]]) -> None:
    """The same the other way round, each as soon as it is there."""
    with path.open("w", encoding="utf-8") as file:
        for conversation in conversations:
            messages = [asdict(message) for message in conversation]
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")


def cycle(conversations: list[list[Message]]) -> Draw:
    """Draws them in their order, and then from the first again."""
    places = len(conversations)
    return lambda number: [conversations[place % places] for place in range(number * EPISODES, (number + 1) * EPISODES)]


def token_ids(tokenizer: PreTrainedTokenizerFast, conversations: list[list[Message]]) -> list[list[int]]:
    """Each conversation as the chat template writes it, with the tools that it offers."""
    call_format = ChatTemplate(tokenizer).call_format
    rows: list[list[int]] = []
    for conversation in conversations:
        shown, schemas = offered(list(conversation), call_format)
        messages = [asdict(message) for message in shown]
        tools = json.loads(schemas) if schemas else None
        ids: Any = tokenizer.apply_chat_template(messages, tools=tools, tokenize=True, return_dict=False)
        rows.append(ids)
    return rows


def batches(draw: Draw, tokenizer: PreTrainedTokenizerFast, tokens: int, key: Key) -> Iterator[Batch]:
    """Batches, each of conversations of like length and of at most `tokens` with their padding."""
    number = 0
    while True:
        rows = token_ids(tokenizer, draw(number))
        batch: list[list[int]] = []
        made: list[list[list[int]]] = []
        for row in sorted((row[:tokens] for row in rows), key=len):
            if batch and (len(batch) + 1) * len(row) > tokens:
                made.append(batch)
                batch = []
            batch.append(row)
        made.append(batch)
        for index in _permutation(len(made), key.fold_in("batches", number)):
            yield made[index], 1
        number += 1


def repetitions(entries: int, tokens: int, key: Key) -> Iterator[Batch]:
    """Batches of random pieces of the vocabulary, each said twice, of which the second time is learnt."""
    number = 0
    while True:
        draw = key.fold_in("repetitions", number)
        length = SHORTEST_PIECE + int(draw.uniform(0) * (LONGEST_PIECE + 1 - SHORTEST_PIECE))
        generator = torch.Generator().manual_seed(draw.fold_in("ids").bits() >> 1)
        piece = torch.randint(entries, (tokens // (2 * length), length), generator=generator)
        yield torch.cat([piece, piece], 1).tolist(), length
        number += 1


def response_tokens(ids: torch.Tensor, header: torch.Tensor, end: int) -> torch.Tensor:
    """Which tokens are of responses, with the one that ends each.

    Args:
        ids: [B, T] of conversations.
        header: [H] ids that precede a response.
        end: the id that ends every message.

    Returns:
        [B, T], bool.
    """
    begins = (ids.unfold(1, len(header), 1) == header).all(-1)  # [B, T - H + 1]
    begins = functional.pad(begins, (len(header), 0))[:, : ids.shape[1]]
    message = functional.pad(ids == end, (1, 0))[:, :-1].cumsum(1)  # ends before: a response is of one message
    return message == torch.where(begins, message, -1).cummax(1).values


def _permutation(count: int, key: Key) -> list[int]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(key.bits() >> 1)).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="a configuration of a supervised warm start with a new model")
    parser.add_argument("--updates", type=int, default=0, help="of AdamW")
    parser.add_argument("--draws", type=int, default=8, help="of 64 conversations, whose words a new vocabulary has")
    parser.add_argument("--write", action="store_true", help="write the conversations of these draws, and end")
    parser.add_argument("--repetitions", type=int, default=0, help="of them, the first: random pieces said twice")
    parser.add_argument("--tokens", type=int, default=4096, help="most tokens of an update")
    parser.add_argument("--learning_rate", type=float, default=2e-3, help="reached after 50 updates")
    parser.add_argument("--initial_std", type=float, default=0.02, help="of a new model's weights")
    parser.add_argument("--response_weight", type=float, default=1.0, help="of a response's tokens; others have 1")
    parser.add_argument("--muon", type=float, help="learning rate of Muon for the matrices, AdamW's for the rest alone")
    parser.add_argument("--decay", type=int, default=0, help="last updates, over which the learning rates fall to zero")
    parser.add_argument("--noise", type=float, help="share of random actions, instead of the configuration's")
    parser.add_argument("--seed", type=int, help="of the draws, instead of the configuration's")
    parser.add_argument("--vocabulary", type=int, default=1024, help="most entries of the tokenizer")
    parser.add_argument("--chat_template", type=Path, help="a file with a new tokenizer's, instead of ChatML")
    parser.add_argument("--model", type=Path, help="a folder to go on from, with its tokenizer, instead of a new model")
    parser.add_argument("--conversations", type=Path, help="a JSONL file, learnt instead of the oracle's transcripts")
    parser.add_argument(
        "--output", type=Path, required=True, help="a folder, which transformers can read; or the file that is written"
    )
    arguments = parser.parse_args()

    config = read_config(str(arguments.config))
    if arguments.seed is not None:
        config["seed_everything"] = arguments.seed
    transcripts, key = (
        Transcripts(config, arguments.noise),
        Key(config.get("seed_everything", SEED)).fold_in("language model"),
    )
    transcribed = (row for number in range(arguments.draws) for row in transcripts.draw(number))
    if arguments.write:
        write_conversations(arguments.output, transcribed)
        return
    conversations = read_conversations(arguments.conversations) if arguments.conversations else []
    if arguments.model is None:
        rows = [*conversations, *transcribed]
        texts = (message.content for row in rows for message in row if message.role != "tools")
        tokenizer = make_tokenizer(texts, arguments.vocabulary)
        if arguments.chat_template is not None:
            tokenizer.chat_template = arguments.chat_template.read_text(encoding="utf-8")
        torch.manual_seed(config.get("seed_everything", SEED))
        shape = small_config(Scratch(**config["model"]["policy"]["model"]), tokenizer)
        shape.initializer_range = arguments.initial_std
        model = AutoModelForCausalLM.from_config(shape)
    else:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(arguments.model)
        model = AutoModelForCausalLM.from_pretrained(arguments.model)
    print(f"{len(tokenizer)} entries, {sum(map(torch.numel, model.parameters())):,} parameters")

    embeddings = model.get_input_embeddings().weight  # the output's too
    matrices = [weight for weight in model.parameters() if weight.ndim == 2 and weight is not embeddings]
    if arguments.muon is None:
        optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(model.parameters(), arguments.learning_rate, weight_decay=0.0)
        ]
    else:
        others = [weight for weight in model.parameters() if weight.ndim != 2 or weight is embeddings]
        optimizers = [
            torch.optim.AdamW(others, arguments.learning_rate, weight_decay=0.0),
            torch.optim.Muon(matrices, arguments.muon, weight_decay=0.0, momentum=0.95),
        ]
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    drawn = batches(cycle(conversations) if conversations else transcripts.draw, tokenizer, arguments.tokens, key)
    repeated = repetitions(len(tokenizer) - SPECIAL, arguments.tokens, key)
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    header = torch.tensor(tokenizer.encode("<|im_start|>assistant\n"))
    begun, seen, rows_seen = time.process_time(), 0, 0
    for update in range(arguments.updates):
        for optimizer, rate in zip(optimizers, rates, strict=True):
            rising, falling = (update + 1) / 50, (arguments.updates - update) / max(1, arguments.decay)
            optimizer.param_groups[0]["lr"] = rate * min(1.0, rising, falling)
        source = repeated if update < arguments.repetitions else drawn
        drawn_rows, given = next(source)
        batch = [torch.tensor(row) for row in drawn_rows]
        ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=pad)  # ends alone are padded
        logits = model(input_ids=ids, use_cache=False).logits[:, given - 1 : -1]
        targets = ids[:, given:]
        losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=pad, reduction="none")
        weights = (targets != pad) + (arguments.response_weight - 1) * response_tokens(ids, header, end)[:, given:]
        loss = (losses * weights.flatten()).sum() / weights.sum()
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        seen, rows_seen = seen + sum(map(len, batch)), rows_seen + len(batch)
        if (update + 1) % 25 == 0:
            seconds = time.process_time() - begun
            print(f"{update + 1}: loss {loss.item():.3f}, {rows_seen} rows, {seen} tokens, {seconds:.0f} s", flush=True)
        if (update + 1) % 100 == 0 or update + 1 == arguments.updates:
            model.save_pretrained(arguments.output)
            tokenizer.save_pretrained(arguments.output)


if __name__ == "__main__":
    main()
