"""Kernels as people see them at DEBUG=4: few, small, one idea each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tiny_testing.kernels import element, elementwise, load, product, store
from tinycore.dtype import dtypes
from tinycore.lower.pipeline import lower
from tinycore.lower.plan import plan_for
from tinycore.render.base import Limits, Renderer
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

render = pytest.importorskip("tiny_cpu.render")

LIMITS: Final = Limits(vector_bytes=32, threads=2)
RENDERERS: Final[dict[str, Renderer]] = {
    "clang.c": render.Clang(LIMITS),
    "llvm.ll": render.LlvmCpu(LIMITS),
}


def multiply_add() -> UOp:
    """Vectors, a splat constant, and a product that may be fused."""
    single = dtypes.float32
    return elementwise(lambda a, b: [a * b + 0.5], [single, single], 64, lanes=8)


def sum_rows() -> UOp:
    """A loop shared among threads, an accumulator, and a loop inside."""
    row, column = UOp.range(16, 0, AxisKind.PARALLEL), UOp.range(64, 1, AxisKind.REDUCE)
    value = load(element(1, dtypes.float32, 1024, row * 64 + column), dtypes.float32)
    total = UOp(Op.REDUCE, dtypes.float32, (value, column), Op.ADD)
    change = store(element(0, dtypes.float32, 16, row), total * (1 / 64))
    return UOp.sink(UOp(Op.END, dtypes.void, (change, row)))


def greatest_vector() -> UOp:
    """An accumulator that is a vector, and a maximum that keeps NaN."""
    counter = UOp.range(16, 0, AxisKind.REDUCE)
    lanes = dtypes.float32.vec(4)
    value = load(element(1, dtypes.float32, 64, counter * 4), lanes)
    most = UOp(Op.REDUCE, lanes, (value, counter), Op.MAX)
    change = store(element(0, dtypes.float32, 4, UOp.index(0)), most)
    return UOp.sink(UOp(Op.END, dtypes.void, (change,)))


def padded() -> UOp:
    """A load behind a gate, with zeros around."""
    counter = UOp.range(10, 0)
    inside = (counter > 0) & (counter < 9)
    place = element(1, dtypes.float32, 8, counter - 1, gate=inside)
    value = load(place, dtypes.float32, UOp.const(dtypes.float32, 0.0))
    change = store(element(0, dtypes.float32, 10, counter), value)
    return UOp.sink(UOp(Op.END, dtypes.void, (change, counter)))


def small_floats() -> UOp:
    """bfloat16 in memory, float32 between."""
    return elementwise(lambda a: [a * 2.0], [dtypes.bfloat16], 64)


def exponential() -> UOp:
    """A kernel of e**x."""
    return elementwise(lambda a: [a.alu(Op.EXP)], [dtypes.float32], 64)


def integers() -> UOp:
    """Sums that wrap, quotients and conversions that have a value for every operand."""
    whole = dtypes.int32
    return elementwise(
        lambda a, b, x: [a + b, a.alu(Op.IDIV, b), x.cast(whole)],
        [whole, whole, dtypes.float32],
        64,
    )


def choice() -> UOp:
    """Lanes of bool: compared, combined, stored and used to choose."""
    single = dtypes.float32
    return elementwise(
        lambda a, b, p: [((a < b) & p).where(a, b), (a < b) | p],
        [single, single, dtypes.bool],
        64,
        lanes=4,
    )


def variable_size() -> UOp:
    """A loop whose end is given at launch."""
    counter = UOp.range(UOp.variable("n", 1, 64), 0)
    value = load(element(1, dtypes.float32, 64, counter), dtypes.float32)
    change = store(element(0, dtypes.float32, 64, counter), -value)
    return UOp.sink(UOp(Op.END, dtypes.void, (change, counter)))


def matmul() -> UOp:
    """A product under the default plan: threads, a tile of rows, vectors of columns."""
    return product(64, 64, 64, dtypes.float32)


CASES: Final[dict[str, Callable[[], UOp]]] = {
    case.__name__: case
    for case in (
        *(multiply_add, sum_rows, greatest_vector, padded, small_floats),
        *(exponential, integers, choice, variable_size, matmul),
    )
}
PLANNED: Final = {"matmul"}
"""The cases whose loops are tiled; the others stay as they are written above."""


@pytest.mark.parametrize("name", RENDERERS)
@pytest.mark.parametrize("case", CASES)
def test_kernel(case: str, name: str, golden: object) -> None:
    renderer, kernel = RENDERERS[name], CASES[case]()
    plan = plan_for(kernel, LIMITS) if case in PLANNED else ()
    source = renderer.render(lower(kernel, renderer, case, plan))

    golden.check(case, name, source)  # type: ignore[attr-defined]


def test_no_golden_file_is_unused() -> None:
    folder = Path(__file__).parent
    found = {path.relative_to(folder).as_posix() for path in folder.glob("*/*.*")}
    found = {name for name in found if not name.startswith("__pycache__")}

    assert found == {f"{case}/{name}" for case in CASES for name in RENDERERS}
