"""Up to how many tokens packed passes and cached keys equal a model's own pass, where its type sets a limit."""

from dataclasses import dataclass

from transformers import PretrainedConfig

from tsr_lightning.modeling.ropes import DYNAMIC_ROPES

# Types that attend to the `index_topk` keys that an indexer chooses, by the mask alone, which packed passes do not see
_INDEXED = frozenset({"axk2", "deepseek_v32", "dots3_note_text", "glm_moe_dsa"})
_WINDOW_IN_MASK = frozenset({"qwen2_moe"})  # and those that have a sliding window in it alone


@dataclass(frozen=True)
class ExactLength:
    """The most tokens of a sequence, and why."""

    tokens: int
    reason: str


def exact_length(config: PretrainedConfig) -> ExactLength | None:
    """The limit of a model; None for that of its positions.

    Args:
        config: of the text model.
    """
    values = config.to_dict()
    if config.model_type in _INDEXED:
        return ExactLength(int(values["index_topk"]), "behind these it attends to the keys that an indexer chooses")
    window = values.get("sliding_window") if values.get("use_sliding_window", True) else None
    if config.model_type in _WINDOW_IN_MASK and window:
        return ExactLength(int(window), "behind these it attends to a sliding window, which this type does not say")
    rope = values.get("rope_parameters") or {}
    original = rope.get("original_max_position_embeddings") or values.get("original_max_position_embeddings")
    if rope.get("rope_type") in DYNAMIC_ROPES and original:
        return ExactLength(
            int(original), f"behind these its {rope['rope_type']} positions change for all tokens of a pass"
        )
    return None
