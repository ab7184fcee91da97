"""Exported and embedded folders generate the same in plain transformers and peft, without this project."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import ROOT
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

from tsr_lightning.engines.base import Sampling
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.envs.make import make_env
from tsr_lightning.policy.chat import Chat, SingleTurn
from tsr_lightning.policy.export import export
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.model_files import location
from tsr_lightning.policy.spec import LoRA, PolicySpec, Scratch
from tsr_lightning.policy.vocabulary import load_tokenizer, make_tokenizer
from tsr_lightning.rng import Key
from tsr_lightning.search.driver import Driver, SearchTask
from tsr_lightning.search.simulator import TokenLimits
from tsr_lightning.search.strategies import Sample
from tsr_lightning.trajectory import Message, Trajectory, Turn

BUDGET = 12
EMBEDDED = {  # policies, and the configuration of the task that each plays; TextWorld's smallest stands for all three
    **{task: task for task in ("sokoban", "frozen_lake", "webshop", "alfworld")},
    "textworld_small": "textworld",
}
SCRIPT = """
import importlib, json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tsr_lightning", "callbacks"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocker())
for name in ("tsr_lightning", "callbacks"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        continue
    raise AssertionError(name + " can be imported here")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

torch.set_num_threads(1)
found = {}
for name, case in json.load(open(sys.argv[1])).items():
    tokenizer = AutoTokenizer.from_pretrained(case["folder"])
    if case["base"] is None:
        model = AutoModelForCausalLM.from_pretrained(case["folder"])
    else:
        from peft import PeftModel
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(case["base"]), case["folder"])
    model.eval()
    found[name] = []
    for messages in case["conversations"]:
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids = model.generate(**prompt, do_sample=False, max_new_tokens=case["budget"])[0].tolist()
        length = prompt["input_ids"].shape[1]
        text = tokenizer.decode(ids[length:], skip_special_tokens=True)
        found[name].append({"prompt": ids[:length], "response": ids[length:], "text": text})
json.dump(found, sys.stdout)
"""


def greedy_episodes(policy: Policy, tokenizer: PreTrainedTokenizerFast, task: str) -> tuple[list[Any], list[Any]]:
    """Conversations of greedy episodes, and the prompt, response and text of each by this project's engine."""
    data = yaml.safe_load((ROOT / "configs" / f"{task}.yaml").read_text(encoding="utf-8"))["data"]
    env = make_env(data["env"], **data["env_kwargs"])
    chat = Chat(tokenizer, SingleTurn())
    engine = Transformers().build(policy, chat.end_ids, policy.context_length)
    driver = Driver([env], chat, engine, Sampling(0.0, BUDGET), TokenLimits(policy.context_length))
    tasks = [SearchTask(seed, 0, Sample(), Key(seed)) for seed in (1, 2, 3)]
    trajectories = driver.run(tasks)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    shown = [shown_messages(trajectory, turn) for trajectory in trajectories for turn in trajectory.turns]
    conversations = [[asdict(message) for message in messages] for messages in shown]
    expected = [{"prompt": list(turn.prompt), "response": list(turn.response), "text": turn.text} for turn in turns]
    return conversations, expected


def shown_messages(trajectory: Trajectory, turn: Turn) -> tuple[Message, ...]:
    """A turn's messages after its instance's system message, which the first turn has."""
    first = trajectory.turns[0]
    system = tuple(message for message in first.messages if message.role == "system")
    return turn.messages if turn is first else (*system, *turn.messages)


def trained(spec: PolicySpec, tokenizer: PreTrainedTokenizerFast) -> Policy:
    """A policy with noise added to every trainable tensor, as if it had been trained."""
    policy = Policy(spec, tokenizer, critic=False)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for tensor in policy.trainable_state().values():
            tensor.add_(0.05 * torch.randn(tensor.shape, generator=generator))
    return policy.eval()


@pytest.fixture(scope="module")
def found_and_expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """For each case, the generations of plain transformers in another process, and those of our engine."""
    folder = tmp_path_factory.mktemp("plain")
    cases: dict[str, Any] = {}
    expected: dict[str, Any] = {}

    def add(name: str, task: str, policy: Policy, tokenizer: PreTrainedTokenizerFast, where: Path, base: str | None):
        conversations, expected[name] = greedy_episodes(policy, tokenizer, task)
        cases[name] = {"folder": str(where), "base": base, "conversations": conversations, "budget": BUDGET}

    for name, task in EMBEDDED.items():
        spec = PolicySpec(f"embedded/{name}")
        tokenizer = load_tokenizer(spec, ())
        add(name, task, Policy(spec, tokenizer, critic=False).eval(), tokenizer, Path(location(spec.model)), None)

    spec = PolicySpec("embedded/sokoban")
    tokenizer = load_tokenizer(spec, ())
    whole = trained(spec, tokenizer)
    export(whole, tokenizer, folder / "whole")
    add("all weights", "sokoban", whole, tokenizer, folder / "whole", None)

    adapted = trained(PolicySpec(spec.model, LoRA(rank=4, alpha=8)), tokenizer)
    export(adapted, tokenizer, folder / "adapter")
    add("adapter", "sokoban", adapted, tokenizer, folder / "adapter", location(spec.model))
    export(adapted, tokenizer, folder / "merged", merged=True)
    add("merged", "sokoban", adapted, tokenizer, folder / "merged", None)

    texts = ["Turn 1: ####_P <answer>Up || Down</answer>"] * 2
    sizes = Scratch(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, max_position_embeddings=512
    )
    fresh = trained(PolicySpec(sizes), make_tokenizer(texts))
    export(fresh, make_tokenizer(texts), folder / "new")
    add("a new model", "sokoban", fresh, make_tokenizer(texts), folder / "new", None)

    config = Qwen2Config(
        **{"vocab_size": len(tokenizer), "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 512},
        **{"bos_token_id": None, "eos_token_id": 0, "pad_token_id": None},  # not those that end responses in training
    )
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "qwen2")
    tokenizer.save_pretrained(folder / "qwen2")
    other = trained(PolicySpec(str(folder / "qwen2")), tokenizer)
    export(other, tokenizer, folder / "of qwen2")
    add("a Qwen2 with a tokenizer that is not Qwen's", "sokoban", other, tokenizer, folder / "of qwen2", None)

    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT, str(folder / "cases.json")], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), expected


@pytest.mark.slow
@pytest.mark.xdist_group("plain_transformers")  # of parallel workers one makes the generations
@pytest.mark.parametrize(
    "name",
    [
        *(*EMBEDDED, "all weights", "adapter", "merged", "a new model"),
        "a Qwen2 with a tokenizer that is not Qwen's",
    ],
)
def test_greedy_generations_are_the_same(name: str, found_and_expected: tuple[dict[str, Any], dict[str, Any]]):
    found, expected = (side[name] for side in found_and_expected)
    assert len(expected) >= 3
    assert found == expected
