"""A decode step as the C kernel takes it: branches in the order of their prompts' tree, and the keys of each run.

Prompts share beginnings: those of a search's beams, of an instance's members, of all instances. Keys that several
prompts share are read once for all their branches (as in Hydragen, arXiv 2402.05099, and DeFT, arXiv 2404.00242). Knows
no tensor but arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from tsr_lightning.modeling.native.prompt_tree import PromptTree
from tsr_lightning.modeling.segments import DecodeStep

MAX_PLACES = 64  # of a block
_LANES = 8  # queries are computed by so many
_ALIGNED = 0.5  # prompts that share less than this part begin a vector of their own


@dataclass(frozen=True)
class StepBlocks:
    """A decode step in blocks, as `step` in step.c."""

    table: NDArray[np.int64]  # [B, 4]: place, places, run, runs
    places: NDArray[np.int64]  # [P] the packed token on each, or -1
    runs: NDArray[np.int64]  # [R, 4]: from, to (places of the block), slot, count
    slots: NDArray[np.int64]  # of all runs
    own_firsts: NDArray[np.int64]  # [P + 1] where the slots begin that one place alone sees, in `own_slots`
    own_slots: NDArray[np.int64]

    @property
    def scores_computed(self) -> int:
        """Products of a query and a key in each head, those of empty places included."""
        first, to, _, count = self.runs.T
        return int(((to - first) * count).sum()) + len(self.own_slots)


@dataclass(frozen=True)
class _Layout:
    """Where branches are: it stays until one of them ends."""

    ranks: list[int]  # of the step's prompts, ascending
    bounds: list[tuple[int, int]]  # the places of each
    blocks: list[tuple[int, int]]  # the places of each, too
    places: NDArray[np.int64]  # [P] as in `StepBlocks`


@dataclass(frozen=True)
class _PromptRuns:
    """The parts of prompts that branches see."""

    table: NDArray[np.int64]
    runs: NDArray[np.int64]
    slots: NDArray[np.int64]
    own: list[NDArray[np.int64]]  # [P] what one place alone sees


class StepPlan:
    """Blocks of decode steps over the same prompts.

    Args:
        prompts: [G] slots of each group's prompt.
        group_heads: query heads per key head.
    """

    def __init__(self, prompts: Sequence[NDArray[np.int64]], group_heads: int) -> None:
        self._tree = PromptTree(prompts)
        self._rank = self._tree.rank  # [G] of each group's prompt
        self._aligned = _LANES // gcd(group_heads, _LANES)  # places of whole vectors
        self._groups = b""  # of the last step
        self._layout: _Layout
        self._prompt_runs: _PromptRuns  # without a window

    def keep(self, groups: Sequence[int]) -> None:
        """Drops all groups but these."""
        self._rank = self._rank[list(groups)]
        self._groups = b""

    def blocks(self, step: DecodeStep, columns: NDArray[np.int64], window: int | None) -> StepBlocks:
        """Returns the blocks of one step.

        Args:
            step: the branches.
            columns: [G, at least C] slots of each group's columns.
            window: sliding window, or none.
        """
        if self._groups != step.groups.tobytes():
            self._layout = self._place_branches(self._rank[step.groups])
            self._prompt_runs = self._runs(np.zeros(len(self._layout.places), dtype=np.int64))
            self._groups = step.groups.tobytes()
        places, prompts = self._layout.places, self._prompt_runs
        taken = np.flatnonzero(places >= 0)
        tokens = places[taken]
        seen = step.columns[tokens]
        if window is not None:
            first = np.zeros(len(places), dtype=np.int64)  # depth that each place sees
            first[taken] = np.maximum(step.positions[tokens] - window + 1, 0)
            prompts = self._runs(first)
            depths = step.prompt_lengths[tokens][:, None] + seen.cumsum(axis=1) - 1
            seen = seen & (depths >= first[taken][:, None])
        branch, column = seen.nonzero()
        own_slots = columns[step.groups[tokens][branch], column]
        counts = np.zeros(len(places), dtype=np.int64)
        counts[taken] = seen.sum(axis=1)
        if prompts.own:
            parts = np.split(own_slots, counts.cumsum()[:-1])
            own_slots = np.concatenate([part for pair in zip(prompts.own, parts, strict=True) for part in pair])
            counts += [len(part) for part in prompts.own]
        own_firsts = np.concatenate([[0], counts.cumsum()])
        return StepBlocks(prompts.table, places, prompts.runs, prompts.slots, own_firsts, own_slots)

    def _place_branches(self, ranks: NDArray[np.int64]) -> _Layout:
        """Puts branches, of prompts with these ranks, side by side if they share keys."""
        order = np.argsort(ranks, kind="stable")
        distinct, firsts = np.unique(ranks[order], return_index=True)
        common = [0, *self._tree.common(distinct.tolist())]
        places: list[int] = []
        bounds, ends, begin = [], [], 0
        for rank, tokens, shared in zip(distinct.tolist(), np.split(order, firsts[1:]), common, strict=True):
            if shared < _ALIGNED * len(self._tree.path(rank)):
                padding = -(len(places) - begin) % self._aligned
                if not shared or len(places) - begin + padding + len(tokens) > MAX_PLACES:
                    ends.append(len(places))
                    begin = len(places)
                else:
                    places += [-1] * padding
            bounds.append((len(places), len(places) + len(tokens)))
            for token in tokens.tolist():
                if len(places) - begin == MAX_PLACES:
                    ends.append(len(places))
                    begin = len(places)
                places.append(token)
        blocks = list(zip(ends, [*ends[1:], len(places)], strict=True))
        return _Layout(distinct.tolist(), bounds, blocks, np.array(places))

    def _runs(self, first: NDArray[np.int64]) -> _PromptRuns:
        """Runs over what each place sees of its prompt: all from depth `first` [P] on."""
        layout = self._layout
        nodes = [(node, self._tree.path(layout.ranks[node.first])) for node in self._tree.nodes(layout.ranks)]
        table: list[tuple[int, ...]] = []
        runs: list[tuple[int, ...]] = []
        slots: list[NDArray[np.int64]] = []
        own: list[list[NDArray[np.int64]]] = [[np.empty(0, dtype=np.int64)] for _ in first]
        slot = 0
        for begin, end in layout.blocks:
            run = len(runs)
            for node, path in nodes:
                place, until = max(layout.bounds[node.first][0], begin), min(layout.bounds[node.end - 1][1], end)
                if place >= until:
                    continue
                start = min(max(node.start, int(first[place:until].max())), node.stop)  # from here on all see all
                if start < node.stop:
                    runs.append((place - begin, until - begin, slot, node.stop - start))
                    slots.append(path[start : node.stop])
                    slot += node.stop - start
                if start > node.start:
                    for i in np.flatnonzero(layout.places[place:until] >= 0) + place:
                        own[i].append(path[max(node.start, int(first[i])) : start])
            table.append((begin, end - begin, run, len(runs) - run))
        return _PromptRuns(
            np.array(table),
            np.array(runs, dtype=np.int64).reshape(-1, 4),
            np.concatenate([*slots, own[0][0]]),
            [np.concatenate(parts) for parts in own] if first.any() else [],
        )


class PlannedStep:
    """A step whose blocks are built once per sliding window. Arguments as of `StepPlan.blocks`."""

    def __init__(self, plan: StepPlan, step: DecodeStep, columns: NDArray[np.int64]) -> None:
        self._plan = plan
        self._step = step
        self._columns = columns
        self._longest = int(step.positions.max()) + 1
        self._blocks: dict[int | None, StepBlocks] = {}

    def blocks(self, window: int | None) -> StepBlocks:
        window = None if window is None or window >= self._longest else window
        if window not in self._blocks:
            self._blocks[window] = self._plan.blocks(self._step, self._columns, window)
        return self._blocks[window]
