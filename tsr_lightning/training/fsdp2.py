"""The strategy `fsdp2`: weights, gradients and optimizer states are sharded over all ranks."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch import Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import (
    FSDPStrategy,
    ModelParallelStrategy,
    ParallelStrategy,
    StrategyRegistry,
)
from torch import Tensor
from torch.optim import Optimizer

from tsr_lightning.errors import require
from tsr_lightning.policy.sharding import check_can_shard, shard_like, whole
from tsr_lightning.policy.spec import PolicySpec


class FSDP2(ModelParallelStrategy):
    """Lightning's ModelParallelStrategy over all ranks of all nodes, without tensor parallelism.

    A checkpoint is a file of whole tensors, as under any other strategy: Lightning's own would be a folder of shards,
    which holds the frozen weights too. So it resumes under any strategy, on any number of ranks.

    Args:
        process_group_backend: nccl, gloo or another; null chooses by the device.
        timeout: after which a rank that waits for the others fails.
    """

    def __init__(
        self, process_group_backend: str | None = None, timeout: timedelta | None = default_pg_timeout
    ) -> None:
        super().__init__(tensor_parallel_size=1, process_group_backend=process_group_backend, timeout=timeout)

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return ParallelStrategy.lightning_module_state_dict(self)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        ParallelStrategy.load_model_state_dict(self, checkpoint, strict)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: _PATH, storage_options: Any | None = None) -> None:
        ParallelStrategy.save_checkpoint(self, checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: _PATH, weights_only: bool | None = None) -> dict[str, Any]:
        return ParallelStrategy.load_checkpoint(self, checkpoint_path, weights_only)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """States of whole tensors on rank 0, one gathered at a time; other ranks write nothing, and have no states."""
        if isinstance(optimizer, LightningOptimizer):
            optimizer = optimizer.optimizer
        state = optimizer.state_dict()
        states: dict[int, dict[str, Any]] = {}
        for number, figures in state["state"].items():
            gathered = {name: whole(figure) for name, figure in figures.items()}
            if self.is_global_zero:
                states[number] = {name: figure.cpu() for name, figure in gathered.items()}
        return {**state, "state": states}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            states = {
                number: {name: _like_parameter(figure, parameters[number]) for name, figure in figures.items()}
                for number, figures in state["state"].items()
            }
            optimizer.load_state_dict({**state, "state": states})


def check_strategy(trainer: Trainer, spec: PolicySpec) -> None:
    """Refuses a strategy that shards weights in a way of its own, and a model that cannot be sharded."""
    strategy = trainer.strategy
    remedy = "use fsdp2, which shards too, and whose checkpoints resume under any strategy and on any number of ranks"
    is_own = isinstance(strategy, FSDP2) or not isinstance(strategy, FSDPStrategy | ModelParallelStrategy)
    require(is_own, "trainer.strategy", type(strategy).__name__, remedy)
    if isinstance(strategy, FSDP2):
        check_can_shard(spec)


def _like_parameter(figure: Tensor, parameter: Tensor) -> Tensor:
    """An optimizer's figure of a parameter: an average is sharded as the parameter is, a count of steps is not."""
    return shard_like(figure, parameter) if figure.shape == parameter.shape else figure


StrategyRegistry.register("fsdp2", FSDP2, description="Shards weights, gradients and optimizer states over all ranks")
