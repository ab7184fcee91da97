"""Recurrent states of cached prefixes, for models with layers that carry one (`modeling.recurrence`).

A state may be as large as the keys and values of a thousand tokens, so that not every prefix has one: it is kept where
prompts and responses end, and where prompts of one pass part. A sequence goes on from the last of its prefixes that has
one, and what comes after is computed again; the least recently used states are dropped.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tsr_lightning.errors import require
from tsr_lightning.modeling.recurrence import MixerState, TreeRecurrence, run_rows, steps_exactly
from tsr_lightning.modeling.segments import Segment
from tsr_lightning.modeling.state_rows import NO_STATE, plan_rows

_MIB = 2**20
STATES_OF_A_GROUP = 3  # before its prompt, where that parts from another one, and after it
States = dict[nn.Module, MixerState]  # of each mixer, for as many prefixes


@dataclass(frozen=True)
class StateCounts:
    """Capacity of the state cache: prefixes, and groups and responses that are sampled at once."""

    prefixes: int
    groups: int  # at once
    rows: int  # responses at once

    @classmethod
    def within(cls, state_cache_mib: int, state_bytes: int) -> "StateCounts":
        """Counts of states of a size in memory of a size, half of it for prefixes.

        Raises:
            ConfigError: there is no room for the states of one group.
        """
        count = int(state_cache_mib * _MIB) // state_bytes
        require(
            count >= 2 * STATES_OF_A_GROUP,
            "Transformers.state_cache_mib",
            state_cache_mib,
            f"a state of this model's recurrent layers takes {state_bytes / _MIB:.1f} MiB, so give "
            f"{cls.least_mib(state_bytes)} or more",
        )
        return cls(count // 2, count // 2 // STATES_OF_A_GROUP, count - count // 2)

    @staticmethod
    def least_mib(state_bytes: int) -> int:
        """Memory for the states of one group."""
        return int(2 * STATES_OF_A_GROUP * state_bytes / _MIB) + 1


class StateStore:
    """States by the slots of their prefixes.

    Args:
        example: states of one prefix, whose sizes are taken.
        capacity: the most prefixes.
    """

    def __init__(self, example: Mapping[nn.Module, MixerState], capacity: int) -> None:
        self.capacity = capacity
        self._memory = {
            mixer: state.map(lambda t: t.new_empty(capacity, *t.shape[1:])) for mixer, state in example.items()
        }
        self._places: OrderedDict[int, int] = OrderedDict()  # of slots, the least recently used first
        self._free = list(range(capacity))

    @property
    def used_bytes(self) -> int:
        """Memory of the states that are kept now; a CPU has not touched the others."""
        tensors = [tensor for state in self._memory.values() for tensor in state.tensors()]
        return len(self._places) * sum(tensor[0].nbytes for tensor in tensors)

    def clear(self) -> None:
        self.forget(list(self._places))

    def forget(self, slots: Iterable[int]) -> None:
        """Drops the states of slots that stand for other prefixes from now on."""
        self._free += [self._places.pop(slot) for slot in slots if slot in self._places]

    def last(self, path: NDArray[np.int64]) -> int:
        """The length of the longest prefix from whose state a path can be computed, all of it or by two tokens or more;
        0 without one. The state counts as used."""
        slots = path.tolist()
        lengths = (length for length in range(len(slots), 0, -1) if length != len(slots) - 1)
        found = next((length for length in lengths if slots[length - 1] in self._places), 0)
        if found:
            self._places.move_to_end(slots[found - 1])
        return found

    def read(self, slots: Sequence[int]) -> States:
        """Copies of the states of slots, in this order."""
        for slot in slots:
            self._places.move_to_end(slot)
        places = [self._places[slot] for slot in slots]
        return {mixer: _select(memory, places) for mixer, memory in self._memory.items()}

    def write(self, rows: Mapping[int, int], states: Mapping[nn.Module, MixerState]) -> None:
        """Keeps the states of slots, each of which has a row of `states`; the last ones where there are too many."""
        kept = list(rows)[-self.capacity :]
        for slot in kept:
            if slot not in self._places:
                self._places[slot] = self._free.pop() if self._free else self._places.popitem(last=False)[1]
            self._places.move_to_end(slot)
        for mixer, memory in self._memory.items():  # one by one, since a copy of all would be as large as they are
            for own, new in zip(memory.tensors(), states[mixer].tensors(), strict=True):
                places = torch.tensor([self._places[slot] for slot in kept], device=own.device)
                own.index_copy_(0, places, new[[rows[slot] for slot in kept]])


class PrefillStates:
    """Carries states through one pass over whole segments, and keeps those at their ends and branch points.

    Args:
        store: of the states.
        segments: lie packed one after the other; their paths are slots.
    """

    def __init__(self, store: StateStore, segments: Sequence[Segment], device: torch.device) -> None:
        self._store = store
        begins = [store.last(segment.path) for segment in segments]
        outside = list(dict.fromkeys(int(s.path[b - 1]) for s, b in zip(segments, begins, strict=True) if b))
        packed = np.concatenate([segment.path[segment.start :] for segment in segments])
        place = {slot: i for i, slot in enumerate(packed.tolist())}
        paths = [np.array([place[slot] for slot in s.path[b:].tolist()]) for s, b in zip(segments, begins, strict=True)]
        inner = [Segment(segment.length, path) for segment, path in zip(segments, paths, strict=True)]
        origins = [outside.index(int(s.path[b - 1])) if b else NO_STATE for s, b in zip(segments, begins, strict=True)]
        plan = plan_rows(inner, origins, all_ends=True)
        ends = {int(path[-1]) for path in paths}
        order = sorted(plan.ends, key=lambda token: (token in ends, token))  # branch points are dropped first
        self._slots = [int(packed[token]) for token in order]
        self._rows = [plan.ends[token] for token in order]
        self._rest = TreeRecurrence(plan, device)
        self._outside = store.read(outside) if outside else None
        self._new: States = {}

    def mix(self, mixer: nn.Module, hidden: Tensor) -> Tensor:
        outside = self._outside[mixer].split() if self._outside is not None else []
        out, states = self._rest.run(mixer, hidden, outside)
        self._new[mixer] = MixerState.cat([states[row] for row in self._rows])
        return out

    def keep(self) -> None:
        """Keeps the states after the pass."""
        self._store.write({slot: row for row, slot in enumerate(self._slots)}, self._new)


class DecodeStates:
    """Carries the states of branches from token to token, or two tokens at a time where a step of one is not exact.

    Args:
        store: of the states.
        slots: of the branches' prompts.
    """

    def __init__(self, store: StateStore, slots: Sequence[int]) -> None:
        self._store = store
        self._rows = store.read(slots)
        self._stepped = all(steps_exactly(mixer) for mixer in self._rows)
        self._row_of = {slot: row for row, slot in enumerate(slots)}
        self._before: Sequence[int] = slots  # of each row, the prefix with its state: the last but one if that is held
        self._held: dict[nn.Module, Tensor] = {}  # the last token's input [R, H], where the state is that before it
        self._taken: list[int] | None = None

    def prepare(self, parents: Sequence[int], slots: Sequence[int]) -> None:
        """Describes the next step: the slots of one token of each branch, and those of the prefixes before."""
        taken = [self._row_of[parent] for parent in parents]
        self._taken = None if taken == list(range(len(self._row_of))) else taken
        self._row_of = {slot: row for row, slot in enumerate(slots)}
        self._before = slots if self._stepped or self._held else parents

    def mix(self, mixer: nn.Module, hidden: Tensor) -> Tensor:
        held = self._held.pop(mixer, None)
        if self._taken is not None:
            self._rows[mixer] = _select(self._rows[mixer], self._taken)
            held = held if held is None else held[self._taken]
        if self._stepped:
            return run_rows(mixer, hidden[:, None], self._rows[mixer])[:, 0]
        if held is not None:
            return run_rows(mixer, torch.stack([held, hidden], dim=1), self._rows[mixer])[:, 1]
        self._held[mixer] = hidden
        state = self._rows[mixer].map(torch.clone)
        return run_rows(mixer, torch.stack([hidden, hidden], dim=1), state)[:, 0]

    def keep(self, slots: Sequence[int]) -> None:
        """Keeps the states of those prefixes that the last step has reached, or of the ones before."""
        rows = {self._before[self._row_of[slot]]: self._row_of[slot] for slot in slots if slot in self._row_of}
        if rows:
            self._store.write(rows, self._rows)


def _select(state: MixerState, rows: Sequence[int]) -> MixerState:
    """A copy of rows."""
    return state.map(lambda tensor: tensor.index_select(0, torch.tensor(rows, device=tensor.device)))
