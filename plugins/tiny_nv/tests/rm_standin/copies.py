"""The copy class: copies of lines, fills, semaphores.

open-gpu-doc: clc6b5.h, clc7b5.h, clc8b5.h, clcab5.h, whose offsets are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy

from rm_standin.status import Mistake
from rm_standin.view import WRITE, View

if TYPE_CHECKING:
    from rm_standin.objects import Channel

__all__ = ["Copies"]

KNOWN: Final = {
    0x240: "semaphore_high",
    0x244: "semaphore_low",
    0x248: "payload_low",
    0x24C: "payload_high",
    0x260: "source_mode",
    0x264: "target_mode",
    0x400: "source_high",
    0x404: "source_low",
    0x408: "target_high",
    0x40C: "target_low",
    0x410: "source_pitch",
    0x414: "target_pitch",
    0x418: "length",
    0x41C: "lines",
    0x700: "constant_a",
    0x704: "constant_b",
    0x708: "components",
}
LAUNCH: Final = 0x300
NONE, PIPELINED, SERIAL = 0, 1, 2
NO_SEMAPHORE, ONE_WORD, FOUR_WORDS = 0, 1, 2
CONSTANT_A: Final = 4


class Copies:
    """The class on a channel. Pipelined copies that nothing waits for run in reverse order."""

    def __init__(self, channel: Channel, view: View) -> None:
        self.channel, self.view = channel, view
        self.state: dict[str, int] = {}
        self.begun: list[tuple[int, dict[str, int]]] = []

    def write(self, method: int, value: int) -> None:
        """A method."""
        if method == LAUNCH:
            self.launch(value)
        elif method in KNOWN:
            self.state[KNOWN[method]] = value
        else:
            raise Mistake(f"the copy class is sent method {method:#x}")

    def launch(self, value: int) -> None:
        """LAUNCH_DMA."""
        kind = value & 3
        if value >> 12 & 3 or value >> 14 & 0xFF or value >> 5 & 3:
            raise Mistake(f"LAUNCH_DMA of {value:#x}")
        if kind == SERIAL:
            self.flush()
        if kind in (PIPELINED, SERIAL):
            self.begun.append((value, dict(self.state)))
        if kind == SERIAL:
            self.flush()
        if semaphore := value >> 3 & 3:
            if value >> 2 & 1:
                self.flush()
            self.release(semaphore, bool(value >> 27 & 1))

    def address(self, state: dict[str, int], name: str) -> int:
        """An address of two words."""
        if f"{name}_high" not in state or f"{name}_low" not in state:
            raise Mistake(f"a copy without the address of its {name}")
        high = state[f"{name}_high"]
        if high >> self.channel.gpu.facts.address_bits - 32:
            raise Mistake(f"the {name} of a copy lies at {high:#x} in the upper word")
        return high << 32 | state[f"{name}_low"]

    def release(self, kind: int, is_long: bool) -> None:
        """The semaphore of a launch."""
        if kind not in (ONE_WORD, FOUR_WORDS) or "payload_low" not in self.state:
            raise Mistake(f"a semaphore of kind {kind} with {sorted(self.state)}")
        payload = self.state["payload_low"]
        if is_long:
            payload |= self.state.get("payload_high", 0) << 32
        clock = self.channel.gpu.clock() if kind == FOUR_WORDS else None
        self.view.release(self.address(self.state, "semaphore"), payload, is_long, clock)

    def flush(self) -> bool:
        """End what has begun."""
        found = bool(self.begun)
        while self.begun:
            self.run(*self.begun.pop())
        return found

    def run(self, value: int, state: dict[str, int]) -> None:
        """Move bytes."""
        if value >> 7 & 3 != 3:
            raise Mistake(f"a copy between blocks of pixels: {value:#x}")
        lines = state.get("lines", 0) if value >> 9 & 1 else 1
        length = state.get("length", 0)
        if not lines or not length:
            raise Mistake(f"a copy of {lines} lines of {length} bytes")
        target = self.address(state, "target")
        if value >> 10 & 1:
            self.fill(target, lines * length, state)
            return
        source = self.address(state, "source")
        for line in range(lines):
            place = source + line * state.get("source_pitch", 0)
            there = target + line * state.get("target_pitch", 0)
            taken = self.view.span(place, length).copy()
            self.view.span(there, length, WRITE)[:] = taken

    def fill(self, target: int, count: int, state: dict[str, int]) -> None:
        """Components of a constant."""
        components = state.get("components", 0)
        width, number = (components >> 16 & 3) + 1, (components >> 24 & 3) + 1
        if components & 7 != CONSTANT_A or number != 1 or width == 3:
            raise Mistake(f"a fill with components {components:#x}")
        pattern = state.get("constant_a", 0).to_bytes(4, "little")[:width]
        filled = numpy.tile(numpy.frombuffer(pattern, numpy.uint8), count)
        self.view.span(target, count * width, WRITE)[:] = filled
