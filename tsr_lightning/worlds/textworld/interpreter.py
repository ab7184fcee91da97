"""Z-machine interpreters, shared by all environments of the program: any state of a game, and a command, to the next.

jericho's own `get_state` and `set_state` copy the machine's whole memory, registers and random numbers in some
microseconds. A state is kept as what differs from the game's first one: about a kilobyte instead of 37.
"""

import threading
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jericho import FrotzEnv
from numpy.typing import NDArray

CAPACITY = 96  # interpreters that run at once, 2 to 3 MB and some 20 ms of starting each
_SEED = 1  # of the interpreter; TextWorld's games draw nothing
LONGEST_INPUT = 115  # characters that a game reads of a line


class MachineState(NamedTuple):
    """A state of the machine, as its difference from the game's first state."""

    places: bytes = b""  # of changed bytes in memory and stack, as little-endian uint32
    values: bytes = b""  # the bytes there
    registers: tuple[
        int, ...
    ] = ()  # program counter, stack pointer, frame pointer, frame count, opcode, random numbers
    narrative: bytes = b""  # text that the interpreter holds


class _Running:
    """An interpreter with its game's first state."""

    def __init__(self, path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "not fully supported": it has no score of its own, which is not used
            self.machine = FrotzEnv(str(path), seed=_SEED)
        self.opening: str = self.machine.reset()[0]
        self.reports = "".join(self.machine.step(command)[0] for command in SET_UP)
        state = self.machine.get_state()
        self.image = np.concatenate([state[0], state[1]])
        self._ram = len(state[0])
        self.first = self._packed(state)

    def step(self, memory: MachineState, command: str) -> tuple[MachineState, str]:
        image = self.image.copy()
        image[np.frombuffer(memory.places, "<u4")] = np.frombuffer(memory.values, np.uint8)
        pc, sp, fp, frames, opcode, *rng = memory.registers
        ram, stack = image[: self._ram], image[self._ram :]
        self.machine.set_state((ram, stack, pc, sp, fp, frames, opcode, tuple(rng), memory.narrative))
        text: str = self.machine.step(command)[0]
        return self._packed(self.machine.get_state()), text

    def _packed(self, state: Any) -> MachineState:
        ram, stack, pc, sp, fp, frames, opcode, rng, narrative = state
        image: NDArray[np.uint8] = np.concatenate([ram, stack])
        places = np.flatnonzero(image != self.image)
        registers = tuple(int(value) for value in (pc, sp, fp, frames, opcode, *rng))
        return MachineState(places.astype("<u4").tobytes(), image[places].tobytes(), registers, bytes(narrative))


SET_UP = (  # what TextWorld's wrappers send before a game: score and inventory after every turn, and what happened
    "tw-extra-infos score",
    "tw-extra-infos inventory",
    "tw-trace-actions",
)


class Interpreters:
    """The interpreters of the games played last.

    Args:
        capacity: the most that run at once; the one that was used longest ago makes room.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._running: OrderedDict[Path, _Running] = OrderedDict()
        self._lock = threading.Lock()  # environments may step in threads

    def begin(self, path: Path) -> tuple[MachineState, str, str]:
        """The first state of a game, what it says, and what it reports of that state."""
        with self._lock:
            running = self._get(path)
            return running.first, running.opening, running.reports

    def step(self, path: Path, memory: MachineState, command: str) -> tuple[MachineState, str]:
        """The state after a command, and the raw text that the game answers. Depends on nothing else."""
        with self._lock:
            return self._get(path).step(memory, command)

    def _get(self, path: Path) -> _Running:
        running = self._running.get(path)
        if running is None:
            while len(self._running) >= self._capacity:
                self._running.popitem(last=False)
            running = self._running[path] = _Running(path)
        self._running.move_to_end(path)
        return running


interpreters = Interpreters()
