"""Random work on several devices of queues, compared with doing it one after the other.

    python -m queue_stress --commands 1000000 --seed 1

Every result is a mixture that depends on all that went into it and on the order; so work done too
early, too late or twice is found where a cell is read, and at the end in all of them.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import time
from typing import Any, Final

from queue_machine import Bus, QueuedDevice, QueuedProgram

from tiny_hcq import HCQBuffer, HCQGraph
from tinycore.plugin import Launch

CELLS: Final = 6
BYTES: Final = 8
MASK: Final = (1 << 64) - 1
Step = tuple[list[tuple[int, int]], int | None]
"""Cells of a launch, as device and cell, and its value; a copy has none."""


def mixed(a: int, b: int, value: int) -> int:
    """A number that tells both operands, their order and the value."""
    return (a * 6364136223846793005 + (b ^ b >> 29) * 1442695040888963407 + value) & MASK


def mix(memories: list[memoryview], values: tuple[int, ...]) -> None:
    """The same, on memory: the second and third into the first."""
    a, b = (struct.unpack_from("=Q", m)[0] for m in memories[1:])
    struct.pack_into("=Q", memories[0], 0, mixed(a, b, values[0]))


class HeldGraph:
    """A graph, with its launches: places of cells, and a value."""

    def __init__(self, graph: HCQGraph, steps: list[Step]) -> None:
        self.graph = graph
        self.steps = steps


class Stress:
    """Devices, what their cells must hold, and the work still to be done."""

    def __init__(self, seed: int, devices: int = 3, limit: int = 150, binds: bool = True) -> None:
        self.chance = random.Random(seed)
        bus = Bus()
        self.devices = [
            QueuedDevice(
                n,
                bus=bus,
                seed=seed * 31 + n,
                binds=binds and n != 1,
                copies=n != 2,
                overlaps=n == 0,
                directions=n == 1,
                argument_bytes=512,
            )
            for n in range(devices)
        ]
        for device in self.devices:
            device.TIMELINE_LIMIT = limit  # type: ignore[misc]
        self.programs: list[QueuedProgram] = [d.function(mix, 3, 1) for d in self.devices]
        self.cells: list[list[HCQBuffer]] = []
        self.expected: list[list[int]] = []
        for device in self.devices:
            whole = device.allocator.alloc(CELLS * BYTES)
            parts = [device.allocator.offset(whole, BYTES, n * BYTES) for n in range(CELLS)]
            self.cells.append(parts)
            self.expected.append([0] * CELLS)
        for device_number in range(devices):
            for cell in range(CELLS):
                self.write(device_number, cell)
        self.graphs = [self.capture() for _ in range(4)]

    # --- one piece of work each

    def anywhere(self, device: int | None = None) -> tuple[int, int]:
        """A cell at random."""
        if device is None:
            device = self.chance.randrange(len(self.devices))
        return device, self.chance.randrange(CELLS)

    def cell(self, place: tuple[int, int]) -> HCQBuffer:
        """Its memory."""
        return self.cells[place[0]][place[1]]

    def write(self, device: int, cell: int) -> None:
        """Fill a cell from the host."""
        number = self.chance.getrandbits(64)
        data = memoryview(struct.pack("=Q", number))
        self.devices[device].allocator.write(self.cells[device][cell], data)
        self.expected[device][cell] = number

    def read(self, device: int, cell: int) -> None:
        """Compare a cell."""
        found = bytearray(BYTES)
        self.devices[device].allocator.read(memoryview(found), self.cells[device][cell])
        (number,) = struct.unpack("=Q", found)
        assert number == self.expected[device][cell], (
            f"cell {cell} of {self.devices[device]} holds {number:#x}, "
            f"not {self.expected[device][cell]:#x}"
        )

    def step(self) -> Step:
        """A launch with its value, or a copy, which has none."""
        if self.chance.random() < 0.6:
            device = self.chance.randrange(len(self.devices))
            return [self.anywhere(device) for _ in range(3)], self.chance.getrandbits(31)
        return [self.anywhere(), self.anywhere()], None

    def launch(self, places: list[tuple[int, int]], value: int | None) -> Launch:
        """A step as devices take it."""
        buffers = [self.cell(place) for place in places]
        if value is not None:
            return self.programs[places[0][0]], buffers, [value]
        target, source = (self.devices[device] for device, _ in places)
        return target.copier(BYTES, source), buffers, []

    def follow(self, places: list[tuple[int, int]], value: int | None) -> None:
        """Apply a step to the expected cells."""
        found = [self.expected[device][cell] for device, cell in places]
        device, cell = places[0]
        self.expected[device][cell] = (
            found[1] if value is None else mixed(found[1], found[2], value)
        )

    def capture(self) -> HeldGraph:
        """A graph of random steps."""
        steps = [self.step() for _ in range(self.chance.randrange(1, 12))]
        return HeldGraph(self.devices[0].graph([self.launch(*step) for step in steps]), steps)

    def replay(self) -> None:
        """Run a graph, some of its buffers and values changed."""
        held = self.chance.choice(self.graphs)
        for number, (places, value) in enumerate(held.steps):
            if self.chance.random() < 0.1:
                slot = self.chance.randrange(len(places))
                places[slot] = self.anywhere(places[slot][0])
                held.graph.set_buffer(number, slot, self.cell(places[slot]))
            if value is not None and self.chance.random() < 0.3:
                held.steps[number] = places, self.chance.getrandbits(31)
                held.graph.set_value(number, 0, held.steps[number][1] or 0)
        held.graph(wait=self.chance.random() < 0.05)
        for places, value in held.steps:
            self.follow(places, value)

    def work(self) -> None:
        """One piece of work at random."""
        kind = self.chance.random()
        if kind < 0.8:
            step = self.step()
            program, buffers, values = self.launch(*step)
            program(buffers, values, wait=self.chance.random() < 0.01)
            self.follow(*step)
        elif kind < 0.93:
            self.replay()
        elif kind < 0.96:
            self.write(*self.anywhere())
        elif kind < 0.985:
            self.read(*self.anywhere())
        elif kind < 0.995:
            self.chance.choice(self.devices).synchronize()
        else:
            self.graphs[self.chance.randrange(len(self.graphs))] = self.capture()

    @property
    def executed(self) -> int:
        """Commands that queues have executed."""
        return sum(engine.executed for device in self.devices for engine in device.engines)

    def run(self, commands: int) -> None:
        """Work until so many commands were executed, then compare every cell."""
        while self.executed < commands:
            self.work()
        for device in range(len(self.devices)):
            for cell in range(CELLS):
                self.read(device, cell)

    def close(self) -> None:
        """Close the devices."""
        self.graphs.clear()
        for device in self.devices:
            device.close()


def main(arguments: list[str]) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    given: Any = parser.parse_args(arguments)
    stress = Stress(given.seed)
    began = time.perf_counter()
    stress.run(given.commands)
    seconds = time.perf_counter() - began
    eras = sum(device.era for device in stress.devices)
    print(
        f"{stress.executed} commands in {seconds:.1f} s, seed {given.seed}: every cell is right; "
        f"timelines began anew {eras} times"
    )
    stress.close()


if __name__ == "__main__":
    main(sys.argv[1:])
