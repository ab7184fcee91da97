"""Puts LoRA adapters on a model. Imports peft, which takes two seconds, so import this only for a policy with one."""

from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import PreTrainedModel

from tsr_lightning.policy.spec import LoRA


def with_adapter(base: PreTrainedModel, adapter: LoRA) -> PeftModel:
    """The model with a new adapter, whose weights are drawn from torch's global generator."""
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        target_modules=adapter.target_modules,
        lora_dropout=adapter.dropout,
    )
    model = get_peft_model(base, config)
    assert isinstance(model, PeftModel)
    return model
