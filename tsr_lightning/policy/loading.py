"""Loads a Hugging Face causal language model and its adapter. Imports peft and bitsandbytes where they are needed."""

import logging
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from tsr_lightning.errors import require
from tsr_lightning.modeling import attention, packed_forward, recurrence
from tsr_lightning.modeling.kernels import Kernels, multiplies_bfloat16
from tsr_lightning.policy.architecture import small_config
from tsr_lightning.policy.checks import check_vocabulary
from tsr_lightning.policy.model_files import location
from tsr_lightning.policy.spec import NF4, PolicySpec, Scratch
from tsr_lightning.rng import Key

if TYPE_CHECKING:
    from peft import PeftModel

_log = logging.getLogger(__name__)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_model(
    spec: PolicySpec, tokenizer: PreTrainedTokenizerFast, *, seed: int, device: torch.device
) -> "PreTrainedModel | PeftModel":
    """Loads the model on `device`. Fresh weights depend only on `seed`; the global generators keep their state."""
    with _seeded(Key(seed).fold_in("weights"), device):
        if isinstance(spec.model, Scratch):
            config = small_config(spec.model, tokenizer)
            base = AutoModelForCausalLM.from_config(config, dtype=_DTYPES[spec.dtype])
        else:
            base = _from_files(spec.model, spec, device)
    if spec.dtype == "bfloat16" and device.type == "cpu" and not multiplies_bfloat16():
        _log.warning(
            "model.policy.dtype is bfloat16, which this processor multiplies no faster than float32, or slower: it "
            "halves the memory of the base weights, and float32 is more exact"
        )
    attention.install(base)
    packed_forward.install(base, Kernels(spec.kernels))
    recurrence.install(base)
    if spec.quantisation is None:  # quantised weights were loaded on the device
        nn.Module.to(base, device)
    embedding = base.get_input_embeddings().weight
    assert isinstance(embedding, Tensor)
    check_vocabulary(spec, tokenizer, len(embedding))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers 5 renamed checkpointing; the old names still work
        warnings.filterwarnings("ignore", "fan_in_fan_out")  # peft corrects it for GPT-2's transposed layers
        if spec.gradient_checkpointing:
            base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if spec.adapter is None:
            return base
        from tsr_lightning.policy.lora import with_adapter

        with _seeded(Key(seed).fold_in("adapter"), device):
            return with_adapter(base, spec.adapter)


def _from_files(model: str, spec: PolicySpec, device: torch.device) -> PreTrainedModel:
    source = location(model)
    config = AutoConfig.from_pretrained(source)
    # with dropout an update's log-probabilities would differ at random from the rollout's
    config.update({key: 0.0 for key, value in config.to_dict().items() if "drop" in key and isinstance(value, float)})
    quantised: dict[str, Any] = {}
    if spec.quantisation:
        quantised = {"quantization_config": _nf4_config(spec.quantisation), "device_map": {"": device}}
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source,
        config=config,
        dtype=_DTYPES[spec.dtype],
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # refused below
        **quantised,
    )
    base: PreTrainedModel
    base, report = loaded
    _check_all_loaded(model, report)
    if "quantization_config" in base.config.to_dict():  # the folder's own, or that of the spec
        from tsr_lightning.policy.nf4 import prevent_repacking

        prevent_repacking(base)
    return base


def _check_all_loaded(model: str, report: Mapping[str, Collection[Any]]) -> None:
    """transformers draws at random what the files lack or hold in another shape, and goes on."""
    other = sorted(name for name, *_ in report["mismatched_keys"])
    lacking = sorted(report["missing_keys"])
    found = f"hold {other[0]} in another shape than its config.json says" if other else f"lack {(lacking or [''])[0]}"
    count = f" ({len(other or lacking)} such tensors)"
    remedy = f"its weights {found}{count}, so give the folder the weights and the config.json of one model"
    require(not other and not lacking, "model.policy.model", model, remedy)


def _nf4_config(quantisation: NF4) -> BitsAndBytesConfig:
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=quantisation.double_quant,
        bnb_4bit_compute_dtype=_DTYPES[quantisation.compute_dtype],
    )


@contextmanager
def _seeded(key: Key, device: torch.device) -> Iterator[None]:
    """Seeds torch's global generators with `key`, and restores them afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(key.value)
        yield
