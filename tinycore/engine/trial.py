"""A kernel on trial: candidates run on scratch memory, timed, compared with the reference plan's.

Floor 4. Runs in a worker process, or in this one where a device cannot be opened twice.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tinycore.device.protocols import Program, Toolchain
from tinycore.device.registry import OpenDevice
from tinycore.engine.binary import Binary, build
from tinycore.engine.compile import as_generated
from tinycore.engine.scratch import Scratch, middle_values, values_for
from tinycore.lower.tile import Plan
from tinycore.render.base import Renderer
from tinycore.uop.node import UOp

Verdict = Literal["right", "slow", "wrong", "failed"]

LEAST_RUNS: Final = 3
MOST_RUNS: Final = 100
ENOUGH_SECONDS: Final = 0.03
"""Runs go on until they took this long together."""
HOPELESS: Final = 2.0
"""A first run so many times as long as what must be beaten is the only one."""
NEARLY: Final = 1.2
"""Factor over the time to beat within which a candidate is still compared and kept."""
FINAL_ROUNDS: Final = 9
"""Turns that two programs take in the final comparison."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one candidate: `seconds` of its best run, or a description of the fault."""

    verdict: Verdict
    seconds: float = float("inf")
    detail: str = ""


class Trial:
    """Scratch memory for a kernel, and what the reference made of it."""

    def __init__(self, ast: UOp, device: OpenDevice, toolchain: Toolchain[Renderer]) -> None:
        self.ast = ast
        self.device = device
        self.toolchain = toolchain
        self.scratch: Scratch | None = None

    def build(self, plan: Plan | None) -> Binary:
        """The kernel compiled under a plan."""
        return build(self.ast, self.toolchain, plan)

    def set_reference(self, reference: Binary) -> float:
        """Allocate memory and note what the reference makes of it; the seconds of its best run."""
        self.scratch = Scratch(self.ast, self.device.name)
        program = self.load(reference)
        self.run(program)
        self.expected = self.scratch.results()
        return self.best_of(program, self.run(program))

    def load(self, binary: Binary) -> Program:
        """A program of this device."""
        self.values = values_for(binary.info.values, middle_values(self.ast))
        return self.device.load(binary.content, as_generated(binary.info))

    def run(self, program: Program) -> float:
        """One run to its end; the seconds it took."""
        assert self.scratch is not None, "`set_reference` comes first"
        began = time.perf_counter()
        seconds = program(self.scratch.handles, self.values, wait=True)
        return time.perf_counter() - began if seconds is None else seconds

    def best_of(self, program: Program, first: float) -> float:
        """The shortest of several runs, the first of which took `first`."""
        best, total = first, 0.0
        for number in range(MOST_RUNS):
            if number >= LEAST_RUNS and total > ENOUGH_SECONDS:
                break
            seconds = self.run(program)
            best, total = min(best, seconds), total + seconds
        return best

    def measure(self, candidate: Binary, to_beat: float) -> Outcome:
        """Time a candidate; compare what it makes if it is nearly as fast as `to_beat` seconds."""
        assert self.scratch is not None, "`set_reference` comes first"
        program = self.load(candidate)
        first = min(self.run(program), self.run(program))
        if first > to_beat * HOPELESS:
            return Outcome("slow", first)
        seconds = self.best_of(program, first)
        if seconds > to_beat * NEARLY:
            return Outcome("slow", seconds)
        problem = self.difference(program)
        return Outcome("wrong" if problem else "right", seconds, problem)

    def difference(self, program: Program) -> str:
        """Describe how a program's results differ from the reference's; "" if they agree."""
        assert self.scratch is not None, "`set_reference` comes first"
        self.scratch.reset()
        self.run(program)
        return self.scratch.difference(self.expected)

    def compare(self, candidates: Sequence[Binary]) -> list[float]:
        """The median seconds of several programs that take turns, so that noise falls on all."""
        programs = [self.load(candidate) for candidate in candidates]
        for program in programs:
            self.run(program)
        turns = [[self.turn(p) for p in programs] for _ in range(FINAL_ROUNDS)]
        return [statistics.median(column) for column in zip(*turns, strict=True)]

    def turn(self, program: Program) -> float:
        """The best of a few runs."""
        return min(self.run(program) for _ in range(LEAST_RUNS))
