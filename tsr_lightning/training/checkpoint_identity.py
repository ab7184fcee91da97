"""Which model and vocabulary the weights of a checkpoint belong to."""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerFast

from tsr_lightning.errors import require
from tsr_lightning.policy.spec import PolicySpec, model_identity
from tsr_lightning.policy.vocabulary import vocabulary_digest


def identity_entries(spec: PolicySpec, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """The entries of a checkpoint by which it is known again."""
    return {"model_identity": model_identity(spec), "vocabulary": vocabulary_digest(tokenizer)}


def check_identity(checkpoint: Mapping[str, Any], spec: PolicySpec) -> None:
    """Refuses the checkpoint of another model."""
    theirs, ours = checkpoint.get("model_identity") or {}, model_identity(spec)
    differing = ", ".join(sorted(key for key in ours if theirs.get(key) != ours[key]))
    require(
        theirs == ours,
        "model.policy.model",
        spec.model,
        f"ckpt_path holds another model (different: {differing}), so give the model and adapter that it was trained "
        "with",
    )


def check_vocabulary(checkpoint: Mapping[str, Any], spec: PolicySpec, tokenizer: PreTrainedTokenizerFast) -> None:
    """Refuses a checkpoint whose embeddings mean other tokens."""
    require(
        checkpoint["vocabulary"] == vocabulary_digest(tokenizer),
        "model.policy.model",
        spec.model,
        "ckpt_path was trained with another vocabulary, so give the tokenizer, or for a new model the environment's "
        "arguments, of that run",
    )
