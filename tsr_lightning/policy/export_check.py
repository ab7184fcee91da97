"""Reloads an export with plain transformers and peft, and compares what it computes with the policy."""

import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.model_files import location
from tsr_lightning.rng import Key

_SHAPE = (2, 12)  # sequences and tokens that are compared
# A logit in float32 may differ by the larger of an absolute bound and one in standard deviations of the logits, and by
# a relative one: rounding of SmolLM2's 30 layers is 5e-5 standard deviations.
_TOLERANCE = 1e-4  # absolute and relative
_SPREAD_TOLERANCE = 2e-4  # in standard deviations
# Mean difference of the logits in their standard deviations, where weights or arithmetic have fewer bits: rounding of a
# small model is 0.003.
_ROUNDING = 0.1


@torch.no_grad()
def check_export(policy: Policy, folder: Path) -> None:
    """Compares the logits of an export with those of its policy.

    Args:
        policy: that was exported, whole; it is not changed.
        folder: that was written, a whole model or an adapter.

    Raises:
        ConfigError: it cannot be loaded, or is another model.
    """
    vocabulary = int(policy.causal_lm.config.get_text_config().vocab_size)
    device = policy.causal_lm.device
    ids = torch.from_numpy(Key(0).fold_in("export").generator().integers(vocabulary, size=_SHAPE)).to(device)
    was_training = policy.training
    expected = policy.eval().causal_lm(input_ids=ids).logits.float()
    policy.train(was_training)
    try:
        actual = _reloaded(policy, folder, device).eval()(input_ids=ids).logits.float()
    except (RuntimeError, ValueError, KeyError, TypeError, OSError, SafetensorError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"the export of {_named(policy)} cannot be loaded again ({reason}): {_remedy(folder)}"
        ) from error
    if not _agree(policy, expected, actual):
        difference = float((actual - expected).abs().max())
        raise ConfigError(
            f"the export of {_named(policy)} computes other logits than the policy once it is loaded again (by up to "
            f"{difference:.2g}), so it was removed: {_remedy(folder)}"
        )


def _agree(policy: Policy, expected: Tensor, actual: Tensor) -> bool:
    quantisation = policy.spec.quantisation
    is_quantised = "quantization_config" in policy.causal_lm.config.to_dict()
    computes_in_full = not is_quantised or (quantisation is not None and quantisation.compute_dtype == "float32")
    if policy.spec.dtype == "float32" and computes_in_full:
        absolute = max(_TOLERANCE, _SPREAD_TOLERANCE * float(expected.std(-1).mean()))
        return torch.allclose(actual, expected, atol=absolute, rtol=_TOLERANCE)
    return float((actual - expected).abs().mean()) <= _ROUNDING * float(expected.std(-1).mean())  # False for NaN


def _reloaded(policy: Policy, folder: Path, device: torch.device) -> torch.nn.Module:
    if not (folder / "adapter_config.json").is_file():
        whole: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder)
        return torch.nn.Module.to(whole, device)
    from peft import PeftModel  # which takes two seconds to import

    assert isinstance(policy.spec.model, str)
    model = policy.causal_lm
    config = model.config.quantization_config if "quantization_config" in model.config.to_dict() else None
    base = AutoModelForCausalLM.from_pretrained(
        location(policy.spec.model), dtype=model.dtype, quantization_config=config, device_map={"": device}
    )
    if config is not None:
        from tsr_lightning.policy.nf4 import prevent_repacking

        prevent_repacking(base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers renamed checkpointing, which peft asks about
        warnings.filterwarnings("ignore", "fan_in_fan_out")  # peft corrects it for GPT-2's transposed layers
        warnings.filterwarnings("ignore", "Model with `tie_word_embeddings=True`")  # its logits are compared here
        return PeftModel.from_pretrained(base, str(folder))


def _named(policy: Policy) -> str:
    adapter = policy.spec.adapter
    if adapter is None:
        return "the whole model"
    return f"an adapter on {adapter.target_modules}"


def _remedy(folder: Path) -> str:
    is_adapter = (folder / "adapter_config.json").is_file()
    return "export it with --merge true" if is_adapter else "report this model's type and the versions that you use"
