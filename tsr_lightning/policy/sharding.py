"""The policy's weights in training: on every rank, or sharded over the ranks by FSDP2. Nothing else knows shards.

Sharded, the updates train a copy of the policy. The policy itself generates, estimates and is saved; its weights are
whole, and freed while the updates run. So there is one all-gather per epoch, whatever the ranks do in between: each
rolls out and estimates its own share, where forward passes of sharded layers, which all ranks make together, would wait
for one another.
"""

import copy
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from tsr_lightning.errors import require
from tsr_lightning.modeling import packed_forward
from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.model_files import load_config
from tsr_lightning.policy.spec import PolicySpec, Scratch


class Weights(Protocol):
    """Where the trained weights of a policy are. Every method is called on all ranks."""

    @property
    def trained(self) -> Policy:
        """Whose parameters the optimizer updates, and whose `outputs` have gradients."""
        ...

    def gather(self) -> None:
        """Makes the policy's weights whole and those that are trained, until `release`."""
        ...

    def release(self) -> None:
        """Before an update: frees what only the policy needs."""
        ...

    def take_over(self) -> None:
        """Trains from the policy's weights, which are whole and were replaced."""
        ...


class Replicated:
    """The policy itself is trained, as whole on every rank."""

    def __init__(self, policy: Policy) -> None:
        self.trained = policy

    def gather(self) -> None:
        pass

    def release(self) -> None:
        pass

    def take_over(self) -> None:
        pass


class Sharded:
    """A copy of the policy is trained, of whose weights, gradients and optimizer states each rank has its part.

    Layers are gathered one at a time in forward and backward passes (Zhao et al. 2023, arXiv 2304.11277; FSDP2 is
    PyTorch's `fully_shard`).

    Args:
        policy: whole, and equal on all ranks.
        mesh: of the ranks, with one dimension.
    """

    def __init__(self, policy: Policy, mesh: DeviceMesh) -> None:
        self.policy = policy
        shared = {id(parameter): parameter for parameter in policy.parameters()}  # sharding copies each rank's part
        self.trained = copy.deepcopy(policy, shared)
        _shard(self.trained, mesh)
        self._is_whole = True

    def gather(self) -> None:
        if self._is_whole:
            return
        for weight, shard in self._pairs():
            weight.data = whole(shard.detach())
            torch.autograd.graph.increment_version(weight)  # as an update in place does, so that caches are emptied
        self._is_whole = True

    def release(self) -> None:
        if not self._is_whole:
            return
        for weight in self.policy.parameters():
            weight.data = weight.new_empty(0)
        self._is_whole = False

    @torch.no_grad()
    def take_over(self) -> None:
        for weight, shard in self._pairs():
            shard.copy_(shard_like(weight.detach(), shard))

    def _pairs(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """The policy's parameters, each with the trained one."""
        trained = dict(self.trained.named_parameters())
        for name, weight in self.policy.named_parameters():
            yield weight, trained[name]


def weights_of(policy: Policy, mesh: DeviceMesh | None) -> Weights:
    """Returns the replicated or FSDP2-sharded weights of a new policy.

    Args:
        policy: whole, and equal on all ranks.
        mesh: to shard over; None leaves them whole.
    """
    return Replicated(policy) if mesh is None else Sharded(policy, mesh)


def check_can_shard(spec: PolicySpec) -> None:
    """Refuses a model that cannot be sharded, before it is loaded."""
    check_not_quantised(spec)
    if not isinstance(spec.model, Scratch):
        remedy = "its folder has quantised weights, which cannot be sharded, so use trainer.strategy ddp"
        is_quantised = "quantization_config" in load_config(spec.model).to_dict()
        require(not is_quantised, "model.policy.model", spec.model, remedy)


def check_not_quantised(spec: PolicySpec) -> None:
    """Refuses 4-bit weights, from the configuration alone."""
    remedy = (
        "4-bit weights are packed with scales of their own and cannot be sharded, so use trainer.strategy ddp, or set "
        "this to null"
    )
    require(spec.quantisation is None, "model.policy.quantisation", spec.quantisation, remedy)


def whole(tensor: Tensor) -> Tensor:
    """A tensor with the parts of all ranks; called on every rank."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, shard: Tensor) -> Tensor:
    """This rank's part of a whole tensor, sharded as another one; itself where that is whole."""
    if not isinstance(shard, DTensor):
        return tensor
    return distribute_tensor(tensor.to(shard.device), shard.device_mesh, shard.placements, src_data_rank=None)


def _shard(policy: Policy, mesh: DeviceMesh) -> None:
    """Shards each layer by itself, and the rest together: embedding, final norm and output layer, which may be tied."""
    model = policy.causal_lm
    names = model._no_split_modules or ()  # transformers' own list of what is sharded as a whole
    for module in [module for module in model.modules() if type(module).__name__ in names]:
        fully_shard(module, mesh=mesh)
    for layer in packed_forward.packed_layers(model):
        register_fsdp_forward_method(layer, packed_forward.LAYER_METHOD)
    if policy.value_head is not None:
        fully_shard(policy.value_head, mesh=mesh)  # in float32 beside a model of any type
    if policy.starting_model is not None:
        fully_shard(policy.starting_model, mesh=mesh)  # the reference, of which the shards make no passes
    fully_shard(policy, mesh=mesh)
    register_fsdp_forward_method(policy, "outputs")
