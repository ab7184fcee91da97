"""Exports a trained policy as files that plain transformers and peft load: safetensors and the tokenizer."""

import copy
import warnings
from collections.abc import Collection
from pathlib import Path

from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.policy.architecture import as_seed_oss
from tsr_lightning.policy.chat import Chat
from tsr_lightning.policy.export_check import check_export
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.spec import Scratch

# tags, numbers, grids, white space, accents, an ideogram: where rules for splitting text differ
_PROBE = "<think>Let's push 12 boxes</think><answer>Up || Down</answer>\n\n  ######\n#_P_O√ (3, 4) $10.00 É 你\t"


def export(policy: Policy, tokenizer: PreTrainedTokenizerFast, folder: str | Path, *, merged: bool = False) -> None:
    """Writes the policy to a folder, loads it from there again, and compares it.

    Args:
        policy: is not changed.
        tokenizer: saved with the weights.
        folder: created if it does not exist.
        merged: write a whole model that needs no peft, with 4-bit weights dequantised and the adapter added, instead of
            the adapter alone. A policy without an adapter is always written whole.

    Raises:
        ConfigError: what was written is another model, and its weights are removed.
    """
    _write(policy, tokenizer, folder, merged=merged)
    try:
        check_export(policy, Path(folder))
    except ConfigError:
        for weights in Path(folder).glob("*.safetensors*"):  # and the index of their parts
            weights.unlink()
        raise


def _write(policy: Policy, tokenizer: PreTrainedTokenizerFast, folder: str | Path, *, merged: bool) -> None:
    chat = Chat.of(policy.spec, tokenizer)
    model, tokenizer = policy.model, _as_trained(tokenizer, chat.template.text)
    has_adapter = not isinstance(model, PreTrainedModel)  # peft's models are none of transformers'
    if has_adapter and not merged:
        remedy = "the base is a new model, whose weights are in no file, so export it merged"
        require(not isinstance(policy.spec.model, Scratch), "model.policy.adapter", policy.spec.adapter, remedy)
        policy.save_adapter(Path(folder))
        tokenizer.save_pretrained(folder)
        return
    whole = _merged(policy.causal_lm) if has_adapter else policy.causal_lm
    whole.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _generation_config(tokenizer, chat.end_ids).save_pretrained(folder)
    if not _reloads_unchanged(tokenizer, folder):
        _save_as_seed_oss(whole, folder)


def _as_trained(tokenizer: PreTrainedTokenizerFast, template: str) -> PreTrainedTokenizerFast:
    """The tokenizer with the chat template that prompts were written by: the default one where it has none, and without
    the date of another day."""
    if isinstance(tokenizer.chat_template, dict) or template == tokenizer.chat_template:
        return tokenizer
    changed = copy.deepcopy(tokenizer)
    changed.chat_template = template
    return changed


def _generation_config(tokenizer: PreTrainedTokenizerFast, end_ids: Collection[int]) -> GenerationConfig:
    """Ends responses as in training, without the penalties and cut-offs of the base model's own configuration."""
    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=sorted(end_ids),
        pad_token_id=tokenizer.pad_token_id,
    )


def _reloads_unchanged(tokenizer: PreTrainedTokenizerFast, folder: str | Path) -> bool:
    """True if AutoTokenizer tokenises as the tokenizer that was saved."""
    loaded = AutoTokenizer.from_pretrained(folder)
    return bool(loaded.encode(_PROBE, add_special_tokens=False) == tokenizer.encode(_PROBE, add_special_tokens=False))


def _save_as_seed_oss(model: PreTrainedModel, folder: str | Path) -> None:
    """Writes a configuration of the same model for which AutoTokenizer reads tokenizer.json unchanged."""
    config = as_seed_oss(model.config)
    if config is None:
        warnings.warn(
            f"{folder}: AutoTokenizer changes the tokenizer of a {model.config.model_type} model, so load it with "
            "PreTrainedTokenizerFast.from_pretrained",
            stacklevel=3,
        )
    else:
        config.save_pretrained(folder)


def _merged(model: PreTrainedModel) -> PreTrainedModel:
    from tsr_lightning.policy.merging import merged  # which takes two seconds to import

    return merged(model)
