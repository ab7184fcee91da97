"""Layers that carry a state from token to token, in packed passes: convolutions, gated delta nets, Mamba.

Only such a layer's own mixer knows of the state; norms, feed-forward parts and attention compute packed tokens as in
any model. A mixer is given the tokens in rows (`state_rows`), as transformers would give it a batch, and for each row
the state at which it begins. Mixers are all modules of transformers with a convolution and a cache; whether one really
computes packed sequences as each alone is checked by `policy.probe`.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from types import MethodType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from tsr_lightning.modeling.segments import Segment
from tsr_lightning.modeling.state_rows import RowPlan, plan_rows

LEAST_TRANSFORMERS = (5, 22)  # whose mixers ask a cache for what `MixerState` answers
_NO_LIMITS = (0.0, math.inf)
_CACHES = {"cache_params", "past_key_values"}  # transformers' names of a mixer's second argument


class Recurrence(Protocol):
    """Carries states through one forward pass over packed tokens."""

    def mix(self, mixer: nn.Module, hidden: Tensor) -> Tensor:
        """A mixer's output for packed hidden states: [T, H] -> [T, H]."""
        ...


class MixerState(Cache):
    """The state of one mixer for R rows. It is replaced and not changed in place, except by a step of one token."""

    def __init__(self, conv: dict[int, Tensor] | None = None, recurrent: dict[int, Tensor] | None = None) -> None:
        super().__init__(layers=[])
        self.conv = conv or {}  # by transformers' number of the state within the mixer: [R, ...]
        self.recurrent = recurrent or {}

    @classmethod
    def cat(cls, states: Sequence["MixerState"]) -> "MixerState":
        """One state of all rows, a copy."""
        first = states[0]
        return cls(
            {i: torch.cat([state.conv[i] for state in states]) for i in first.conv},
            {i: torch.cat([state.recurrent[i] for state in states]) for i in first.recurrent},
        )

    def tensors(self) -> list[Tensor]:
        return [*self.conv.values(), *self.recurrent.values()]

    def map(self, change: Callable[[Tensor], Tensor]) -> "MixerState":
        """A state of changed tensors."""
        conv, recurrent = ({i: change(t) for i, t in part.items()} for part in (self.conv, self.recurrent))
        return MixerState(conv, recurrent)

    def split(self) -> list["MixerState"]:
        """A state for each row."""
        rows = range(len(self.tensors()[0]))
        return [self.map(itemgetter(slice(row, row + 1))) for row in rows]

    # what mixers call

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.conv.get(state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.recurrent.get(state_idx)

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return bool(self.conv or self.recurrent)

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any
    ) -> Tensor:
        """Returns the inputs with those that the convolution still sees, zeros before the first."""
        size = conv_kernel_size or conv_states.shape[-1]
        before = self.conv.get(state_idx)
        if before is not None:
            conv_states = torch.cat([before, conv_states], dim=-1)
        elif conv_states.shape[-1] < size:
            conv_states = nn.functional.pad(conv_states, (size - conv_states.shape[-1], 0))
        self.conv[state_idx] = conv_states[..., -size:]
        return conv_states

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        self.recurrent[state_idx] = recurrent_states
        return recurrent_states


def mixers(model: nn.Module) -> list[nn.Module]:
    """The modules of a model that carry a state from token to token."""
    return [module for module in model.modules() if _is_mixer(module)]


def _is_mixer(module: nn.Module) -> bool:
    if not any(isinstance(child, nn.Conv1d) for child in module.children()):
        return False  # first, for it is asked of every module in every pass
    return not _CACHES.isdisjoint(list(inspect.signature(type(module).forward).parameters)[2:3])


def install(model: PreTrainedModel) -> None:
    """Makes the mixers of a model follow the recurrence of a packed pass."""
    for mixer in mixers(model):
        mixer.forward = MethodType(_forward, mixer)  # bound methods, so that a copy of the model runs the copy


def _forward(
    mixer: nn.Module,
    hidden_states: Tensor,
    *others: Any,
    packed_recurrence: Recurrence | None = None,
    **named: Any,
) -> Tensor:
    """Replaces the mixer's own forward, and calls it for all but packed passes."""
    if packed_recurrence is None:
        return type(mixer).forward(mixer, hidden_states, *others, **named)
    return packed_recurrence.mix(mixer, hidden_states[0])[None]


def steps_exactly(mixer: nn.Module) -> bool:
    """True if a row of one token that takes up a state is computed as in a longer row. Mixers of Mamba-2 leave the
    limits of their time step out of it (transformers 5.23), which Nemotron-H has."""
    return tuple(vars(mixer).get("time_step_limit", _NO_LIMITS)) == _NO_LIMITS


def run_rows(mixer: nn.Module, rows: Tensor, state: MixerState) -> Tensor:
    """The mixer's output for rows [R, L, H] that take up a state, which becomes that at their ends."""
    out = type(mixer).forward(mixer, rows, state, None)
    assert isinstance(out, Tensor)
    return out


class TreeRecurrence:
    """Computes the segments of a packed pass in the rows of a plan.

    Args:
        plan: of the rows.
        device: of the tokens.
    """

    def __init__(self, plan: RowPlan, device: torch.device) -> None:
        self._plan = plan
        self._tokens = [torch.from_numpy(batch.tokens).to(device) for batch in plan.batches]
        self._outputs = torch.from_numpy(plan.outputs).to(device)

    def mix(self, mixer: nn.Module, hidden: Tensor) -> Tensor:
        return self.run(mixer, hidden, [])[0]

    def run(self, mixer: nn.Module, hidden: Tensor, outside: Sequence[MixerState]) -> tuple[Tensor, list[MixerState]]:
        """The output [T, H], and the numbered states of one row each, of which those from outside are the first."""
        states, out = list(outside), []
        for batch, tokens in zip(self._plan.batches, self._tokens, strict=True):
            rows = hidden.index_select(0, tokens.flatten()).view(*tokens.shape, -1)
            state = MixerState.cat([states[i] for i in batch.origins]) if batch.origins else MixerState()
            out.append(run_rows(mixer, rows, state).flatten(0, 1))
            if batch.gives_states:
                states += state.split()
        return torch.cat(out).index_select(0, self._outputs), states


def for_training(model: PreTrainedModel, segments: Sequence[Segment], device: torch.device) -> Recurrence | None:
    """For a pass over segments whose paths are packed tokens, and the backward pass that follows; None where no layer
    carries a state."""
    return TreeRecurrence(plan_rows(segments), device) if mixers(model) else None
