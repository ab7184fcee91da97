"""A real pretrained model, SmolLM2-135M-Instruct: imported right, prompted right, and generated from exactly."""

from pathlib import Path

import pytest
import torch
from engine_checks import Recording, assert_all_sampled
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from tsr_lightning.engines.base import Prompt
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.envs.frozen_lake.env import TextFrozenLake
from tsr_lightning.policy.chat import Chat, Full
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import NF4, LoRA, PolicySpec
from tsr_lightning.policy.vocabulary import load_tokenizer
from tsr_lightning.rng import Key
from tsr_lightning.trajectory import Message, Turn

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("smollm2")]

# ids of llama.cpp's rule: each digit apart, then GPT-2's splits
PROBES = {
    "a  1\n\n 23\t\t45": [81, 256, 33, 8866, 34, 35, 1656, 36, 37],
    "What is 12 + 30?": [1780, 314, 216, 33, 34, 1232, 216, 35, 32, 47],
    "Let's push 12 boxes": [4239, 506, 5220, 216, 33, 34, 10155],
}


def test_answers_and_token_ids(smollm2: Path):
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert {text: tokenizer.encode(text, add_special_tokens=False) for text in PROBES} == PROBES
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(PolicySpec(""), marks=pytest.mark.exhaustive),
        pytest.param(PolicySpec("", adapter=LoRA(rank=8, alpha=8)), marks=pytest.mark.exhaustive),
        PolicySpec("", adapter=LoRA(rank=8, alpha=8), quantisation=NF4(compute_dtype="float32")),
    ],
    ids=["full", "lora", "nf4"],
)
def test_engine_equals_plain_transformers(spec: PolicySpec, smollm2: Path):
    named = PolicySpec(str(smollm2), spec.adapter, spec.quantisation)
    tokenizer = load_tokenizer(named, ())
    policy = Policy(named, tokenizer, critic=False, keep_reference=False, seed=1, device=torch.device("cpu"))
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:  # an adapter begins as zero, which would hide it
            nn.init.normal_(parameter, std=0.02, generator=torch.Generator().manual_seed(1))
    chat = Chat(tokenizer, Full())
    env = TextFrozenLake(prompt_style="instruct", observation="coordinates", actions_per_turn=1)
    first, _ = env.reset(seed=1)
    rules, said = Message("system", env.instructions), chat.write("Right")
    second, *_ = env.step("Right")
    asked = (rules, Message("user", first))
    past = Turn(chat.prompt([], asked), said, (0.0,) * len(said), True, asked, "Right", 0.0, True, True, "Right")
    prompts = [past.prompt, chat.prompt([past], [Message("user", second)])]
    conversation = [
        {"role": "system", "content": env.instructions},
        {"role": "user", "content": first},
        {"role": "assistant", "content": "Right"},
        {"role": "user", "content": second},
    ]
    rendered = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
    assert list(prompts[1]) == rendered

    engine = Recording(Transformers(kv_cache_mib=256).build(policy, chat.end_ids, 1024))
    seeds = [tuple(Key(7).fold_in(place, n).value for n in range(3)) for place in range(len(prompts))]
    for temperature in (0.0, 1.0):
        engine.generate([Prompt(ids, own, 6) for ids, own in zip(prompts, seeds, strict=True)], temperature)
        assert assert_all_sampled(policy, engine, temperature, chat.end_ids) >= 6
        engine.prompts.clear()
        engine.responses.clear()
