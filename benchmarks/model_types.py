"""Which of transformers' causal language models are exact here: writes docs/model_types.md.

python -m benchmarks.model_types [TYPE ...]

Builds a tiny random model of every type, each in a process of its own, and compares the packed training pass and the
engine's responses with the model's own pass over each sequence alone. With types it prints their lines.
"""

import multiprocessing
import random
import re
import resource
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from tsr_lightning.engines.base import Prompt
from tsr_lightning.engines.transformers.spec import Transformers
from tsr_lightning.errors import ConfigError
from tsr_lightning.modeling.recurrence import mixers
from tsr_lightning.policy.checks import check
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.probe import check_packing, check_repeats
from tsr_lightning.policy.spec import PolicySpec
from tsr_lightning.policy.vocabulary import make_tokenizer

PAGE = Path(__file__).resolve().parent.parent / "docs" / "model_types.md"
LAYERS, TOLERANCE = 4, 1e-3
SECONDS = 120  # of the processor, so that other programs change nothing
TOKENIZER = make_tokenizer(["Turn 1: ####_P <answer>Up</answer>"] * 2)
SIZES: dict[str, Any] = {  # under all the names that configurations have for them
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), len(TOKENIZER)),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "embedding_size"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "moe_intermediate_size", "n_inner"), 64),
    **dict.fromkeys(("shared_expert_intermediate_size", "shared_intermediate_size", "ffn_hidden_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_global_key_value_heads", "mamba_num_heads"), 4),
    **dict.fromkeys(("linear_num_value_heads", "linear_num_heads", "num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("n_routed_experts", "moe_num_experts", "num_heads", "n_mamba_heads"), 4),
    **dict.fromkeys(("head_dim", "kv_channels", "global_head_dim", "mamba_d_head", "mamba_head_dim"), 16),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim"), 16),
    **dict.fromkeys(
        ("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim", "hidden_size_per_layer_input"), 16
    ),
    **dict.fromkeys(("ssm_state_size", "mamba_d_state", "state_size", "rotary_dim"), 8),
    **dict.fromkeys(("n_positions", "max_position_embeddings", "n_ctx", "max_seq_len"), 256),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "top_k", "linear_num_key_heads"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "n_groups"), 1),
    **dict.fromkeys(("mamba_n_groups", "mamba_ngroups"), 1),
    **dict.fromkeys(("num_kv_shared_layers",), 0),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
    "mamba_n_heads": 8,
    "mamba_d_ssm": 128,
}
KINDS = (
    "layer_types",
    "mlp_layer_types",
    "layers_block_type",
    "mlp_only_layers",
    "no_rope_layers",
)  # one for each layer
OWN: dict[str, dict[str, Any]] = {  # what the sizes do not settle
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"expand": 1},
    "bamba": {"attn_layer_indices": [1, 3]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "mlp", "mamba"]},
    "zaya": {"num_experts_per_tok": 1},
    # tied to embeddings that are scaled up, logits would repeat the last token with probability 1
    **{key: {"tie_word_embeddings": False} for key in ("gemma4_unified_text", "minicpm3", "vaultgemma")},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
}


@dataclass(frozen=True)
class Outcome:
    """The result for one model type."""

    model_type: str
    verdict: str
    detail: str

    @property
    def row(self) -> str:
        return f"| {self.model_type} | {self.detail} |"


EXACT, HYBRID, VLLM, REFUSED, UNBUILT = (
    "exact",
    "exact, with recurrent layers",
    "trained, not sampled",
    "refused",
    "not built",
)
HEADINGS = {
    EXACT: "Exact: trained, and sampled by the default engine",
    HYBRID: "Exact, with recurrent layers",
    VLLM: "Trained; `data.engine` has to be `VLLM`, where vLLM has the type",
    REFUSED: "Refused, in one sentence before anything is trained",
    UNBUILT: "Not looked at",
}
INTRODUCTION = """Made by `python -m benchmarks.model_types` with transformers {}: of every type of causal language
model a tiny random one is built, and the packed training pass and the default engine's responses are compared with the
model's own pass over each sequence alone, with transformers' own attention. The figure is the engine's largest
difference of a log-probability, in nats, float32.

Some are exact up to a number of tokens alone, which then is the most that `data.context_tokens` may be:

| which | up to |
|---|---|
| axk2, deepseek_v32, dots3_note_text, glm_moe_dsa | `index_topk` of its config.json: an indexer chooses further keys |
| qwen2_moe with `use_sliding_window` | `sliding_window` |
| positions of type longrope or dynamic | `original_max_position_embeddings`: longer passes change them all |
"""


def model_types() -> list[str]:
    """Types of causal language models that read text alone."""
    return [
        model_type
        for model_type in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
        if model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
        and not {"text_config", "vision_config", "audio_config"} & CONFIG_MAPPING[model_type].sub_configs.keys()
    ]


def tiny_config(model_type: str) -> PretrainedConfig:
    """A configuration of few and narrow layers."""
    kind = CONFIG_MAPPING[model_type]
    try:
        defaults = kind().to_dict()
    except Exception:  # of a configuration without defaults
        defaults = {}
    known = {*defaults, *kind.attribute_map}
    settings = {key: value for key, value in SIZES.items() if key in known} | {"vocab_size": SIZES["vocab_size"]}
    settings |= {
        key: _one_each(defaults[key]) for key in KINDS if isinstance(defaults.get(key), list) and defaults[key]
    }
    return kind(**settings | OWN.get(model_type, {}))


def _one_each(kinds: list[Any]) -> list[Any]:
    """A kind for each layer, all that there are one after the other."""
    distinct = list(dict.fromkeys(kinds))
    return [distinct[i % len(distinct)] for i in range(LAYERS)]


def outcome(model_type: str) -> Outcome:
    """Builds a model of the type and compares."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            torch.manual_seed(1)
            model = AutoModelForCausalLM.from_config(tiny_config(model_type))
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    torch.nn.init.normal_(parameter, std=0.12)
                else:  # norms, biases and gates, which begin as ones or zeros
                    parameter.data.add_(torch.randn_like(parameter) * 0.2)
            model.save_pretrained(folder)
            TOKENIZER.save_pretrained(folder)
        except Exception as error:
            return Outcome(model_type, UNBUILT, f"no tiny model was built: {_short(error, folder)}")
        spec = PolicySpec(folder)
        try:
            check(spec)
            policy = Policy(spec, TOKENIZER, critic=False)
            check_packing(policy, torch.device("cpu"))
            check_repeats(policy.train(), torch.device("cpu"))
            plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
        except Exception as error:
            return Outcome(model_type, REFUSED, _short(error, folder))
        try:
            worst = engine_difference(policy.eval(), plain)
        except Exception as error:
            return Outcome(model_type, VLLM, _short(error, folder))
    if worst == 0:
        return Outcome(model_type, UNBUILT, "the tiny model gives single tokens all of the probability")
    if worst > TOLERANCE:
        return Outcome(model_type, VLLM, f"the engine's log-probabilities differ by {worst:.1e}")
    return Outcome(model_type, HYBRID if mixers(policy.causal_lm) else EXACT, f"{worst:.0e}")


@torch.no_grad()
def engine_difference(policy: Policy, plain: PreTrainedModel) -> float:
    """The largest difference of a log-probability, in nats, of responses to prompts that share prefixes and go on.

    Args:
        policy: whose engine is asked.
        plain: the same model, with transformers' own attention.
    """
    chance, size = random.Random(1), len(TOKENIZER)
    engine = Transformers(kv_cache_mib=64, state_cache_mib=256).build(policy, frozenset({0}), 96)
    start = tuple(chance.randrange(1, size) for _ in range(20))
    prompts = [Prompt(start[:length], tuple(range(4)), 8) for length in (20, 12, 3)]
    worst = 0.0
    for _ in range(3):
        groups = engine.generate(prompts, 1.0)
        for prompt, group in zip(prompts, groups, strict=True):
            for response in group:
                ids = torch.tensor([prompt.ids + response.ids])
                logprobs = plain(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
                own = logprobs[:-1].gather(1, ids[0, 1:, None])[len(prompt.ids) - 1 :, 0]
                worst = max(worst, float((own - torch.tensor(response.logprobs)).abs().max()))
        prompts = [
            Prompt(p.ids + g[0].ids + start[:3], tuple(range(4)), 8) for p, g in zip(prompts, groups, strict=True)
        ]
    return worst


def _short(error: BaseException, folder: str) -> str:
    text = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
    text = text.replace(f"model.policy.model is {folder!r}: ", "").split("; docs/model_types.md")[0]
    text = re.sub(r" at \S+\.py:\d+", "", text.replace(folder, "it").replace("|", "/"))  # places of this machine
    return shorten(text, 200, placeholder=" ...")


def in_a_process(model_type: str) -> Outcome:
    """As `outcome`; a model that ends its process or takes too long is not looked at."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_send, args=(sender, model_type))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        took_long = process.exitcode == -signal.SIGXCPU
        reason = f"it took more than {SECONDS} s" if took_long else "it ended its process"
        return Outcome(model_type, UNBUILT, reason)
    finally:
        process.kill()
        process.join()


def _send(sender: Connection, model_type: str) -> None:
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    sender.send(outcome(model_type))


def page(outcomes: list[Outcome]) -> Iterator[str]:
    """The lines of the document."""
    yield "# Model types\n"
    yield INTRODUCTION.format(transformers.__version__)
    for verdict, heading in HEADINGS.items():
        found = [each for each in outcomes if each.verdict == verdict]
        yield f"## {heading}\n\n{len(found)} types.\n\n| type | |\n|---|---|"
        yield from (each.row for each in found)
        yield ""


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    chosen = sys.argv[1:] or model_types()
    outcomes = []
    for model_type in chosen:
        outcomes.append(in_a_process(model_type))
        print(f"{outcomes[-1].verdict}: {outcomes[-1].row}", flush=True)
    if not sys.argv[1:]:
        PAGE.write_text("\n".join(page(outcomes)).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
