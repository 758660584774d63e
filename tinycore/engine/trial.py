"""Measurement of candidate plans on scratch memory, with results checked against a reference.

Floor 4. Runs in a worker process, or in this one where a device cannot be opened twice. A user's
tensors are never touched: scratch memory is as large as the kernel's own, filled at random and
compared after. Its content depends on the kernel alone, so every process tries it on the same
numbers.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy

from tinycore.device.buffer import Buffer
from tinycore.device.protocols import Handle, Program, Toolchain
from tinycore.device.registry import OpenDevice
from tinycore.dtype import DType, ImageDType, PointerDType, dtypes, to_numpy_dtype
from tinycore.engine.compile import Binary, as_generated, build
from tinycore.lower.tile import Plan
from tinycore.render.base import Renderer, pointer_of
from tinycore.uop.host_bytes import encode
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

Array: TypeAlias = numpy.ndarray[Any, numpy.dtype[Any]]

PATTERN: Final = 65_521
"""Elements that are drawn and repeated. A prime, so that no two rows of a matrix are equal."""
POISON: Final = 0x3C
"""The byte that outputs hold before a run: of every float a small number, of every integer one."""
MOST_ULPS: Final = 4
"""Tolerance of floats that NumPy lacks, in units of the last place."""


class Scratch:
    """A kernel's buffers on a device, by slot. Raises OutOfMemory."""

    def __init__(self, ast: UOp, device: str) -> None:
        self.slots = sorted(ast.every(Op.DEFINE_GLOBAL), key=lambda n: n.arg)
        self.initial = [content_of(slot, ast) for slot in self.slots]
        self.buffers = [
            memory_like(slot, device).copyin(array.data.cast("B"))
            for slot, array in zip(self.slots, self.initial, strict=True)
        ]
        stored = {pointer_of(n.src[0]) for n in ast.every(Op.STORE)}
        self.written = sorted(p.arg for p in stored if p.op is Op.DEFINE_GLOBAL)

    @property
    def handles(self) -> list[Handle]:
        """The buffers' handles, as a program takes them."""
        return [buffer.handle for buffer in self.buffers]

    def reset(self) -> None:
        """Restore the initial content of all buffers that a run writes."""
        for slot in self.written:
            self.buffers[slot].copyin(self.initial[slot].data.cast("B"))

    def results(self) -> list[Array]:
        """The content of the written buffers."""
        return [self.buffers[slot].numpy() for slot in self.written]

    def difference(self, expected: list[Array]) -> str:
        """The first difference of the written buffers from the expected ones, in words; "" if none.

        Integers are equal bit by bit, floats as far as their precision goes.
        """
        for slot, reference, found in zip(self.written, expected, self.results(), strict=True):
            wrong = numpy.flatnonzero(~agrees(found, reference, self.buffers[slot].dtype))
            if wrong.size:
                first = int(wrong[0])
                return (
                    f"{wrong.size} of {found.size} elements of buffer {slot} differ, the first at "
                    f"{first}: {found[first]} instead of {reference[first]}"
                )
        return ""


def middle_values(ast: UOp) -> dict[str, int]:
    """A value for each variable of a kernel: the middle of its bounds."""
    variables = (n.arg for n in ast.every(Op.DEFINE_VAR))
    return {name: sum(bounds) // 2 for name, *bounds in variables}


def memory_like(slot: UOp, device: str) -> Buffer:
    """Memory for a slot."""
    kind = slot.dtype
    assert isinstance(kind, PointerDType)
    return Buffer(
        device, kind.size, kind.base, image=kind if isinstance(kind, ImageDType) else None
    )


def content_of(slot: UOp, ast: UOp) -> Array:
    """The initial content of a buffer of a trial."""
    assert isinstance(slot.dtype, PointerDType)
    dtype, size = slot.dtype.base, slot.dtype.size
    written = {pointer_of(n.src[0]) for n in ast.every(Op.STORE)}
    read = {pointer_of(n.src[0]) for n in ast.every(Op.LOAD)}
    if slot in written - read:
        return numpy.full(size * dtype.itemsize, POISON, numpy.uint8).view(to_numpy_dtype(dtype))
    generator = numpy.random.default_rng(slot.arg)
    drawn = random_values(generator, min(size, PATTERN), dtype, integers_below(slot, ast))
    return numpy.resize(drawn, size)


def random_values(generator: numpy.random.Generator, size: int, dtype: DType, below: int) -> Array:
    """Random elements of a dtype: floats mostly positive, so that sums retain precision."""
    stored = to_numpy_dtype(dtype)
    if dtype is dtypes.bool:
        return generator.integers(0, 2, size).astype(stored)
    if dtype.kind != "float":
        return generator.integers(0, below, size).astype(stored)
    return encode(generator.uniform(-0.5, 1.0, size), dtype)


def integers_below(slot: UOp, ast: UOp) -> int:
    """Bound on the integers of a buffer that keeps the addresses made of them inside memory."""
    addresses = ast.every(Op.INDEX)
    loads = [n for n in ast.every(Op.LOAD) if pointer_of(n.src[0]) is slot]
    made = [n for n in addresses if any(load in n.src[1].toposort() for load in loads)]
    below = 100
    while made and below > 1 and not all(stays_inside(n, loads, below) for n in made):
        below //= 2
    return below


def stays_inside(index: UOp, loads: list[UOp], below: int) -> bool:
    """True if an address is inside its buffer when the integers it loads are below a number."""
    values = {
        load: UOp.variable(f"loaded{number}", 0, below - 1, load.dtype)
        for number, load in enumerate(loads)
    }
    place, pointer = index.src[1].substitute(dict(values)), index.src[0].dtype
    assert isinstance(pointer, PointerDType)
    return bool(place.vmin >= 0 and place.vmax < pointer.size)


def agrees(found: Array, expected: Array, dtype: DType) -> Array:
    """Mask of the elements that are equal as far as their dtype can tell."""
    if dtype.kind != "float":
        return numpy.asarray(found == expected)
    if expected.dtype.kind != "f":
        return numpy.asarray(abs(in_order(found, dtype) - in_order(expected, dtype)) <= MOST_ULPS)
    with numpy.errstate(all="ignore"):
        relative = math.sqrt(float(numpy.finfo(expected.dtype).eps)) / 4
        finite = numpy.isfinite(expected)
        size = numpy.abs(numpy.where(finite, expected, 0)).astype(numpy.float64)
        far = numpy.abs(found.astype(numpy.float64) - expected.astype(numpy.float64))
        near = far <= relative * (size + (size.mean() if size.size else 0.0))
        both_nan = numpy.isnan(found) & numpy.isnan(expected)
        return numpy.asarray(numpy.where(finite, near, both_nan | (found == expected)))


def in_order(bits: Array, dtype: DType) -> Array:
    """The codes of floats as integers that are in the order of the floats."""
    half = 1 << (dtype.itemsize * 8 - 1)
    code = bits.astype(numpy.int64)
    return numpy.where(code >= half, half - code, code)


# --- timing

Verdict = Literal["right", "slow", "wrong", "failed"]

LEAST_RUNS: Final = 3
MOST_RUNS: Final = 100
ENOUGH_SECONDS: Final = 0.03
"""Runs go on until they took this long together."""
HOPELESS: Final = 2.0
"""Ratio to the time to beat from which the first run is the only one."""
NEARLY: Final = 1.2
"""Ratio to the time to beat within which a candidate is still compared and retained."""
FINAL_ROUNDS: Final = 9
"""Turns that two programs take in the final comparison."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one candidate: `seconds` of its best run, or a description of the fault."""

    verdict: Verdict
    seconds: float = float("inf")
    detail: str = ""


class Trial:
    """Scratch memory for a kernel, and the reference's results."""

    def __init__(self, ast: UOp, device: OpenDevice, toolchain: Toolchain[Renderer]) -> None:
        self.ast = ast
        self.device = device
        self.toolchain = toolchain
        self.scratch: Scratch | None = None

    def build(self, plan: Plan | None) -> Binary:
        """The kernel compiled under a plan."""
        return build(self.ast, self.toolchain, plan)

    def set_reference(self, reference: Binary) -> float:
        """Allocate memory and record the reference's results; the seconds of its best run."""
        self.scratch = Scratch(self.ast, self.device.name)
        program = self.load(reference)
        self.run(program)
        self.expected = self.scratch.results()
        return self.best_of(program, self.run(program))

    def load(self, binary: Binary) -> Program:
        """A program of this device."""
        values = middle_values(self.ast)
        self.values = [values[name] for name in binary.info.values]
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
        """Time a candidate; compare its results if it is nearly as fast as `to_beat` seconds."""
        assert self.scratch is not None, "`set_reference` comes first"
        program = self.load(candidate)
        first = min(self.run(program), self.run(program))
        if first > to_beat * HOPELESS:
            return Outcome("slow", first)
        seconds = self.best_of(program, first)
        if seconds > to_beat * NEARLY:
            return Outcome("slow", seconds)
        self.scratch.reset()
        self.run(program)
        problem = self.scratch.difference(self.expected)
        return Outcome("wrong" if problem else "right", seconds, problem)

    def compare(self, candidates: Sequence[Binary]) -> list[float]:
        """The median seconds of several programs that take turns, so that noise falls on all."""
        programs = [self.load(candidate) for candidate in candidates]
        for program in programs:
            self.run(program)
        turns = [
            [min(self.run(program) for _ in range(LEAST_RUNS)) for program in programs]
            for _ in range(FINAL_ROUNDS)
        ]
        return [statistics.median(column) for column in zip(*turns, strict=True)]
