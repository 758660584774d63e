"""Every operation on every type, scalars and lanes: OpenCL C computes what the interpreter does."""

from __future__ import annotations

import numpy
import pytest

from tiny_testing.kernels import Array, Bench, bench, elementwise, ulps
from tinycore.builtin.python import BACKEND as PYTHON
from tinycore.dtype import DType, dtypes, to_numpy_dtype
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

pytestmark = pytest.mark.sample(3)

SIZE = 256
INTEGERS = [d for d in dtypes.all if d.kind in ("int", "uint")]
FLOATS = [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64]
TARGETS = [*INTEGERS, dtypes.bool, *FLOATS]
SOURCES = [*FLOATS, dtypes.int64, dtypes.uint64, dtypes.int8, dtypes.bool]


def lanes_of(types: list[DType], *also_scalar: DType) -> list[tuple[DType, int]]:
    """Each type in lanes, some also alone: drivers take their time to compile."""
    return [*((dtype, 4) for dtype in types), *((dtype, 1) for dtype in also_scalar)]


@pytest.fixture(scope="session")
def reference() -> Bench:
    """The interpreter."""
    return bench(PYTHON, "PYTHON")


def available(kernels: Bench, *used: DType) -> None:
    """Skip where the device lacks float64."""
    if dtypes.float64 in used and not kernels.toolchain.renderer.has_double:  # type: ignore[attr-defined]
        pytest.skip("the device has no cl_khr_fp64")


def whole_numbers(dtype: DType, seed: int) -> Array:
    """Random numbers of all magnitudes, and every pair of those at the edges."""
    generator = numpy.random.default_rng(seed)
    least, most = int(dtypes.min(dtype)), int(dtypes.max(dtype))
    edges = [0, 1, 2, most, most - 1, least, *([-1, -2, least + 1] if least else [3, 7, 8])]
    pairs = [x for x in edges for _ in edges] if seed == 0 else edges * len(edges)
    shifts = generator.integers(0, dtype.bits, SIZE)
    drawn = generator.integers(least, most, SIZE, to_numpy_dtype(dtype), endpoint=True)
    drawn = drawn >> shifts.astype(drawn.dtype)
    drawn[: len(pairs)] = numpy.array(pairs, drawn.dtype)
    return numpy.asarray(drawn, to_numpy_dtype(dtype))


def real_numbers(dtype: DType, seed: int = 0) -> Array:
    """Random floats of many magnitudes, and those at the edges of integers and of floats."""
    generator = numpy.random.default_rng(seed)
    drawn = generator.standard_normal(SIZE) * numpy.exp2(generator.integers(-12, 70, SIZE))
    powers = [2.0**n + d for n in (7, 8, 15, 16, 31, 32, 52, 63, 64) for d in (-1.0, -0.5, 0.0, 1)]
    edges = [0.0, -0.0, 0.5, -0.75, numpy.inf, -numpy.inf, numpy.nan, 1e30, *powers]
    drawn[: 2 * len(edges)] = [*edges, *(-x for x in edges)]
    with numpy.errstate(over="ignore"):
        rounded = drawn.astype(
            "e" if dtype is dtypes.float16 else "d" if dtype is dtypes.float64 else "f"
        )
    if dtype is dtypes.bfloat16:
        return (rounded.view(numpy.uint32) >> 16).astype(numpy.uint16)
    return rounded


def both(
    kernel: UOp, kernels: Bench, reference: Bench, *arrays: Array
) -> list[tuple[Array, Array]]:
    """Buffers as the device stores them, and as the interpreter does."""
    found, expected = kernels.run(kernel, *arrays), reference.run(kernel, *arrays)
    return list(zip(found, expected, strict=True))


def shifted(a: UOp, b: UOp) -> list[UOp]:
    """Shifts by amounts beyond the width too."""
    return [a << b, a >> b]


def on_integers(a: UOp, b: UOp) -> list[UOp]:
    binary = (Op.ADD, Op.SUB, Op.MUL, Op.IDIV, Op.MOD, Op.FLOORDIV, Op.FLOORMOD)
    results = [a.alu(op, b) for op in (*binary, Op.AND, Op.OR, Op.XOR, Op.MAX, Op.MIN)]
    tests = [a.alu(op, b) for op in (Op.CMPLT, Op.CMPEQ, Op.CMPNE)]
    chosen = ((a < b) & b.ne(0)).where(a, b)
    return [*results, *shifted(a, b), -a, chosen, *tests, (a < b) ^ b.eq(0)]


@pytest.mark.parametrize(("dtype", "lanes"), lanes_of(INTEGERS, dtypes.int8, dtypes.uint32))
def test_integers(dtype: DType, lanes: int, kernels: Bench, reference: Bench) -> None:
    kernel = elementwise(on_integers, [dtype, dtype], SIZE, lanes, AxisKind.GRID)
    outputs = on_integers(*(UOp.const(dtype, 1) for _ in range(2)))
    empty = [numpy.zeros(SIZE, to_numpy_dtype(u.dtype)) for u in outputs]
    given = whole_numbers(dtype, 0), whole_numbers(dtype, 1)

    for number, (found, expected) in enumerate(both(kernel, kernels, reference, *empty, *given)):
        numpy.testing.assert_array_equal(found, expected, f"output {number}")


def converted(x: UOp) -> list[UOp]:
    """The value in every type that is not its own."""
    return [x.cast(d) for d in TARGETS if d is not x.dtype.scalar()]


@pytest.mark.parametrize(("dtype", "lanes"), lanes_of(SOURCES, dtypes.float32, dtypes.uint64))
def test_conversions(dtype: DType, lanes: int, kernels: Bench, reference: Bench) -> None:
    available(kernels, dtypes.float64)
    kernel = elementwise(converted, [dtype], SIZE, lanes, AxisKind.GRID)
    empty = [numpy.zeros(SIZE, to_numpy_dtype(d)) for d in TARGETS if d is not dtype]
    if dtype is dtypes.bool:
        given = numpy.arange(SIZE) % 3 == 0
    else:
        given = real_numbers(dtype) if dtype in FLOATS else whole_numbers(dtype, 0)

    names = [d.name for d in TARGETS if d is not dtype]
    results = both(kernel, kernels, reference, *empty, given)
    for name, (found, expected) in zip(names, results, strict=False):
        if name == "bfloat16":  # any NaN will do
            found, expected = ((x.astype(numpy.uint32) << 16).view("f") for x in (found, expected))
        numpy.testing.assert_array_equal(found, expected, name)


def on_floats(a: UOp, b: UOp) -> list[UOp]:
    exact = [a.alu(op, b) for op in (Op.ADD, Op.SUB, Op.MUL, Op.MAX, Op.MIN)]
    unary = [a.alu(op) for op in (Op.NEG, Op.TRUNC)]
    rounded = [a.alu(Op.FDIV, b), a.alu(Op.RECIPROCAL), a.maximum(0.0).alu(Op.SQRT)]
    functions = [a.alu(op) for op in (Op.EXP, Op.EXP2, Op.SIN)] + [a.maximum(0.0).alu(Op.LOG)]
    tests = [a.alu(op, b) for op in (Op.CMPLT, Op.CMPEQ, Op.CMPNE)]
    return [*exact, *unary, *rounded, *functions, *tests, a.ne(a).where(b, a)]


@pytest.mark.parametrize(("dtype", "lanes"), lanes_of(FLOATS, dtypes.float16, dtypes.float32))
def test_floats(dtype: DType, lanes: int, kernels: Bench, reference: Bench) -> None:
    available(kernels, dtype)
    kernel = elementwise(on_floats, [dtype, dtype], SIZE, lanes, AxisKind.GRID)
    outputs = on_floats(*(UOp.const(dtype, 1.0) for _ in range(2)))
    empty = [numpy.zeros(SIZE, to_numpy_dtype(u.dtype)) for u in outputs]
    given = real_numbers(dtype), numpy.roll(real_numbers(dtype, 1), 7)

    for number, (found, expected) in enumerate(both(kernel, kernels, reference, *empty, *given)):
        if found.dtype == bool:
            numpy.testing.assert_array_equal(found, expected, f"output {number}")
        elif dtype is dtypes.bfloat16:
            single = [(x.astype(numpy.uint32) << 16).view("f") for x in (found, expected)]
            worst = ulps(single[0], single[1].astype("d")).max() / (1 << 16)
            assert worst <= 1, f"output {number}"
        else:
            wide = expected.astype(numpy.longdouble if dtype is dtypes.float64 else "d")
            assert ulps(found, wide).max() <= 3, f"output {number}"
