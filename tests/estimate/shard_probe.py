"""What a rank of FSDP2 really holds and sends, on a CPU. No tests in here."""

import gc
import weakref
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from processes import CONTEXT
from small_models import KINDS, TOKENIZER, sequences
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.optim import AdamW
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import AutoModelForCausalLM, Qwen2Config

from tsr_lightning.policy.model import Policy
from tsr_lightning.policy.sharding import Sharded
from tsr_lightning.policy.spec import PolicySpec

RANKS = 2
PACKED = sequences((24, 25, 26))  # few, so that weights and not activations are the peak


@dataclass(frozen=True)
class Held:
    """Bytes on one rank."""

    weights: int
    gradients: int
    averages: int  # AdamW's
    whole: int  # the policy's own, during a rollout
    released: int  # the same, during updates
    peak: int  # of a forward and a backward pass, with all that is held
    sent: dict[str, int]  # of the collectives of that pass, and of gathering


class Resized(TorchDispatchMode):
    """Within a `with` block, the bytes at their highest of tensors whose storages may be resized, without those that
    are held anyway; and of collectives, the bytes of what they gather or reduce."""

    def __init__(self, held: dict[int, int]) -> None:
        super().__init__()
        self._held = held
        self.highest = 0
        self.sent: Counter[str] = Counter()
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # comes again as operations on its local tensor
        out = func(*args, **(kwargs or {}))
        tensors = [tensor for tensor in tree_iter((args, kwargs, out)) if isinstance(tensor, Tensor)]
        for kind in ("all_gather", "allgather", "reduce_scatter"):
            if kind in str(func) and "c10d" in str(func):
                self.sent[kind.replace("_g", "g")] += max(tensor.nbytes for tensor in tensors)
        for tensor in tree_iter(out):
            if type(tensor) in (Tensor, nn.Parameter):  # no wrapper, which has no memory of its own
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self._held:
                    self._alive[id(storage)] = weakref.ref(storage)
        storages = {number: storage for number, found in self._alive.items() if (storage := found()) is not None}
        self._alive = {number: self._alive[number] for number in storages}
        self.highest = max(self.highest, sum(storage.nbytes() for storage in storages.values()))
        return out


def odd_model(folder: Path) -> Path:
    """Sizes of which some cannot be divided by two."""
    config = Qwen2Config(
        vocab_size=1025,
        hidden_size=128,
        intermediate_size=385,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def spec_of(folder: Path, kind: str) -> PolicySpec:
    return PolicySpec(str(folder), kernels="torch", **KINDS[kind])


def measured(folder: Path, kinds: Iterable[str]) -> dict[str, list[Held]]:
    """Of each kind of policy, with a critic and a reference: what each of two ranks holds."""
    with ProcessPoolExecutor(RANKS, mp_context=CONTEXT) as pool:
        jobs = [pool.submit(_of_rank, rank, folder, tuple(kinds)) for rank in range(RANKS)]
        found = [job.result() for job in jobs]
    return {kind: [of_rank[kind] for of_rank in found] for kind in kinds}


def _of_rank(rank: int, folder: Path, kinds: tuple[str, ...]) -> dict[str, Held]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    try:
        return {kind: _held(spec_of(folder, kind)) for kind in kinds}
    finally:
        dist.destroy_process_group()


def _held(spec: PolicySpec) -> Held:
    policy = Policy(spec, TOKENIZER, critic=True, keep_reference=True).train()
    weights = Sharded(policy, init_device_mesh("cpu", (RANKS,)))
    trained = [parameter for parameter in weights.trained.parameters() if parameter.requires_grad]
    optimizer = AdamW(trained, foreach=True)

    def update() -> None:
        out = weights.trained.outputs(PACKED, 1.0, entropies=True)
        (out.logprobs.sum() + out.values.sum() + out.entropies.sum()).backward()

    weights.release()
    released = _bytes(policy.parameters())
    update()
    optimizer.step()
    averages = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    parts = list(weights.trained.parameters()), [parameter.grad for parameter in trained], averages
    gc.collect()
    with Resized({address: size for part in parts for address, size in _storages(part).items()}) as live:
        update()  # a second micro-batch, whose gradients are added
    with Resized({}) as gathering:
        weights.gather()
    held = [_bytes(part) for part in parts]
    return Held(
        *held,
        whole=_bytes(policy.parameters()),
        released=released,
        peak=sum(held) + live.highest,
        sent={**live.sent, "whole": gathering.sent["allgather"]},
    )


def _bytes(tensors: Iterable[Tensor | None]) -> int:
    """Of the memory behind them, each once."""
    return sum(_storages(tensors).values())


def _storages(tensors: Iterable[Tensor | None]) -> dict[int, int]:
    """Address and bytes of each, of a DTensor this rank's."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors if tensor is not None]
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in local}
