"""The order of figures in TensorBoard's custom scalars: held-out instances first, then rollouts, updates and costs."""

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

Chart = tuple[str, tuple[str, ...]]  # its kind, and patterns of tags


def _lines(*tags: str) -> Chart:
    return "Multiline", tags


LAYOUT = {
    "1 Held-out instances": {
        "success": _lines(r"^val/[^/]+/success_rate$"),
        "return": _lines(r"^val/[^/]+/return$"),
        "valid actions": _lines(r"^val/[^/]+/valid_actions$"),
    },
    "2 Rollout": {
        "success": _lines(r"^rollout/(sampled|searched|demonstrated)/success_rate$"),
        "return": _lines(r"^rollout/(sampled|searched|demonstrated)/return$"),
        "success of search less plain play": _lines(r"^rollout/search_gap.*/success_rate$"),
        "entropy and prompt information": _lines(r"^rollout/sampled/(entropy_per_turn|.*_entropy|.*_information)$"),
    },
    "3 Update": {
        "entropy": _lines(r"^train/entropy$"),
        "entropy, of its highest and lowest": _lines(r"^train/entropy_of_"),
        "gradient norms": _lines(r"^train/grad_norm_"),
        "clipped": _lines(r"^train/clip"),
    },
    "4 Cost": {
        "seconds": _lines(r"^cost/seconds"),
        "memory": _lines(r"^cost/.*_mib$"),
        "lost to failures of the environment": _lines(r"^cost/.*_lost$"),
    },
}


def write_layout(trainer: Trainer) -> None:
    """Writes the layout to TensorBoard, on rank 0."""
    for logger in trainer.loggers if trainer.is_global_zero else ():
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_custom_scalars(LAYOUT)
