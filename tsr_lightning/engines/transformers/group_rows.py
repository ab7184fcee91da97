"""Groups in rows of the decode buffer: each has its prompt's keys and then its columns, so siblings share the prompt
without a copy."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsr_lightning.engines.transformers.kv_store import DecodeBuffer, KVStore
from tsr_lightning.modeling.rounding import Rounding

EXACT = Rounding(least=1, per_octave=2**62)


class GroupRows:
    """Keys and values of every layer, [K, R * L + S, D]: R rows of L places, and S spare places.

    Args:
        store: of the prompts' keys.
        buffer: memory for the rows.
        prompts: slots of each group's prompt.
        prompt_width: places of a row for its prompt.
        columns: places of a row for what its branches add.
        rounding: of the number of rows; those without a group repeat some finite key.
        spare: places in no row.
    """

    def __init__(
        self,
        store: KVStore,
        buffer: DecodeBuffer,
        prompts: Sequence[NDArray[np.int64]],
        prompt_width: int,
        columns: int,
        rounding: Rounding = EXACT,
        spare: int = 0,
    ) -> None:
        self._store = store
        self._device = store.hidden.device
        self._buffer = buffer
        self._rounding = rounding
        self._spare = spare
        self.prompt_width = prompt_width
        self.length = prompt_width + columns  # of a row
        self.lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)  # of the groups' prompts
        self.count = rounding.up(len(prompts))  # of rows
        slots = np.full((self.count, self.length), prompts[0][0], dtype=np.int64)  # any finite number will do
        for row, prompt in enumerate(prompts):
            slots[row, : len(prompt)] = prompt
            slots[row, len(prompt) :] = prompt[0]
        flat = torch.from_numpy(slots.reshape(-1)).to(self._device)
        self.keys, self.values = buffer.views(slots.size + spare)
        for rows, stored in ((self.keys, store.keys), (self.values, store.values)):
            for own, layer in zip(rows, stored, strict=True):
                if spare:
                    own[:, : slots.size].copy_(layer.index_select(1, flat))
                else:
                    torch.index_select(layer, 1, flat, out=own)

    def copy(self, groups: Sequence[int], columns: Sequence[int], slots: Sequence[int]) -> None:
        """Fills columns with tokens that are in the store already."""
        to = torch.from_numpy(self.places(groups, columns)).to(self._device)
        where = torch.tensor(slots, device=self._device)
        for rows, stored in ((self.keys, self._store.keys), (self.values, self._store.values)):
            for own, layer in zip(rows, stored, strict=True):
                own.index_copy_(1, to, layer.index_select(1, where))

    def keep(self, groups: Sequence[int]) -> None:
        """Drops all other groups; those that stay are renumbered in their order."""
        count = self._rounding.up(len(groups))
        stay = torch.tensor([*groups, *[groups[0]] * (count - len(groups))], device=self._device)
        views = self._buffer.views(count * self.length + self._spare)
        for layers, kept in zip((self.keys, self.values), views, strict=True):
            for layer, old in enumerate(layers):
                rows = in_rows(old, self.count, self.length).index_select(1, stay)
                kept[layer][:, : count * self.length].copy_(rows.flatten(1, 2))
                layers[layer] = kept[layer]
        self.lengths = self.lengths[list(groups)]
        self.count = count

    def places(self, groups: Sequence[int], columns: Sequence[int]) -> NDArray[np.int64]:
        """[N] of columns in the rows."""
        return np.asarray(groups) * self.length + self.prompt_width + np.asarray(columns)

    def write(self, layer: int, places: Tensor, key: Tensor, value: Tensor) -> None:
        """Places [N]; key and value [K, N, D]."""
        self.keys[layer].index_copy_(1, places, key)
        self.values[layer].index_copy_(1, places, value)

    def read(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """The first places of every row, [R, K, length, D], without a copy."""
        keys, values = (in_rows(x[layer], self.count, self.length) for x in (self.keys, self.values))
        return keys[:, :, :length].transpose(0, 1), values[:, :, :length].transpose(0, 1)


def in_rows(tensor: Tensor, count: int, length: int) -> Tensor:
    """[K, R * L + S, D] -> [K, R, L, D], without a copy."""
    return tensor[:, : count * length].unflatten(1, (count, length))
