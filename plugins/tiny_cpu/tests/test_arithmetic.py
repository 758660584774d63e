"""Arithmetic of kernels by both compilers: each type, scalars and vectors, odd cases included."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy
import pytest

from tiny_cpu import BACKEND
from tiny_testing.kernels import Array, Bench, bench, element, elementwise, load
from tinycore import Context, Tensor
from tinycore.dtype import DType, dtypes, to_numpy_dtype
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

pytestmark = pytest.mark.sample(6)

Functions = dict[Op, Callable[..., Any]]

SIZE = 64
NATIVE = (dtypes.bool, *dtypes.ints, dtypes.float16, dtypes.float32, dtypes.float64)
INTS = dtypes.ints
FLOATS = (dtypes.float16, dtypes.float32, dtypes.float64)
LANES = (1, 4, 16)
ARCHS = ("native", "x86_64,x86-64", "x86_64,x86-64-v3")


@cache
def bench_for(toolchain: str, arch: str = "native") -> Bench:
    return bench(BACKEND, toolchain, arch)


@pytest.fixture(params=ARCHS)
def cpu(request: pytest.FixtureRequest, toolchain: str) -> Bench:
    """Each compiler, for this processor and for two older ones."""
    machine = request.param.split(",")[0]
    if machine not in ("native", bench_for(toolchain).toolchain.arch.split(",")[0]):
        pytest.skip(f"this machine is not {machine}")
    return bench_for(toolchain, request.param)


def samples(dtype: DType, seed: int = 0) -> Array:
    """Values of a type: its extremes, small ones, and random ones of all sizes."""
    random = numpy.random.default_rng([seed, dtype.priority])
    kind: Any = to_numpy_dtype(dtype)
    if dtype.kind == "bool":
        return random.integers(0, 2, SIZE).astype(bool)
    if dtype.kind == "float":
        wide = random.standard_normal(SIZE) * 10.0 ** random.integers(-3, 5, SIZE)
        wide[:8] = [numpy.nan, numpy.inf, -numpy.inf, 0.0, -0.0, 1.0, -1.0, 3e9]
        with numpy.errstate(over="ignore"):
            return random.permutation(wide.astype(kind))
    info = numpy.iinfo(kind)
    values = random.integers(info.min, info.max, SIZE, dtype=kind, endpoint=True)
    values[:5] = [0, info.min, info.max, 1, -1 if dtype.kind == "int" else 2]
    values[5:24] = random.integers(0, 20, 19)
    return random.permutation(values)


def bits_of(numbers: list[int], like: Array) -> Array:
    """Python integers, wrapped to the type of an array."""
    return numpy.array([n & (2**64 - 1) for n in numbers], numpy.uint64).astype(like.dtype)


def divided(a: Array, b: Array) -> Array:
    def one(x: int, y: int) -> int:
        return 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)

    return bits_of([one(int(x), int(y)) for x, y in zip(a, b, strict=True)], a)


def remainder(a: Array, b: Array) -> Array:
    def one(x: int, y: int) -> int:
        return 0 if y == 0 else abs(x) % abs(y) * (1 if x >= 0 else -1)

    return bits_of([one(int(x), int(y)) for x, y in zip(a, b, strict=True)], a)


def shifted(function: Callable[..., Any]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(a, b & (a.itemsize * 8 - 1))


EVERY: Functions = {
    Op.CMPLT: numpy.less,
    Op.CMPNE: numpy.not_equal,
    Op.CMPEQ: numpy.equal,
    Op.MAX: numpy.maximum,
    Op.MIN: numpy.minimum,
    Op.ADD: numpy.add,
    Op.MUL: numpy.multiply,
}
BITS: Functions = {Op.AND: numpy.bitwise_and, Op.OR: numpy.bitwise_or, Op.XOR: numpy.bitwise_xor}
INTEGER: Functions = {
    Op.SUB: numpy.subtract,
    Op.IDIV: divided,
    Op.MOD: remainder,
    Op.FLOORDIV: numpy.floor_divide,
    Op.FLOORMOD: numpy.mod,
    Op.SHL: shifted(numpy.left_shift),
    Op.SHR: shifted(numpy.right_shift),
}
FLOAT: Functions = {Op.SUB: numpy.subtract, Op.FDIV: numpy.divide}
UNARY_FLOAT: Functions = {
    Op.NEG: numpy.negative,
    Op.SQRT: numpy.sqrt,
    Op.RECIPROCAL: numpy.reciprocal,
    Op.TRUNC: numpy.trunc,
}


def binary_ops(dtype: DType) -> Functions:
    if dtype.kind == "float":
        return {**EVERY, **FLOAT}
    return {**EVERY, **BITS, **({} if dtype.kind == "bool" else INTEGER)}


def check(
    cpu: Bench,
    build: Callable[..., list[UOp]],
    inputs: list[DType],
    expected: Callable[..., list[Array]],
    names: list[str],
) -> None:
    """Run a kernel of several outputs on samples, with each number of lanes."""
    arrays = [samples(dtype, seed) for seed, dtype in enumerate(inputs)]
    with numpy.errstate(all="ignore"):
        wanted = expected(*arrays)
    for lanes in LANES:
        kernel = elementwise(build, inputs, SIZE, lanes)
        found = cpu.run(kernel, *(numpy.zeros_like(w) for w in wanted), *arrays)
        for name, got, want in zip(names, found, wanted, strict=False):
            numpy.testing.assert_array_equal(got, want, f"{name}, {lanes} lanes, {inputs}")


@pytest.mark.parametrize("dtype", NATIVE, ids=lambda d: d.name)
def test_binary_operations(cpu: Bench, dtype: DType) -> None:
    ops = binary_ops(dtype)
    if dtype in cpu.toolchain.renderer.emulated:
        pytest.skip("computed in float32, so it is rounded later than NumPy rounds")
    check(
        cpu,
        lambda a, b: [a.alu(op, b) for op in ops],
        [dtype, dtype],
        lambda a, b: [function(a, b) for function in ops.values()],
        [op.name for op in ops],
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_operations_on_one_float(cpu: Bench, dtype: DType) -> None:
    check(
        cpu,
        lambda a: [a.alu(op) for op in UNARY_FLOAT],
        [dtype],
        lambda a: [function(a) for function in UNARY_FLOAT.values()],
        [op.name for op in UNARY_FLOAT],
    )


def chosen(c: Array, a: Array, b: Array) -> list[Array]:
    return [numpy.where(c, a, b)]


@pytest.mark.parametrize("dtype", NATIVE, ids=lambda d: d.name)
def test_choice(cpu: Bench, dtype: DType) -> None:
    check(
        cpu,
        lambda c, a, b: [c.where(a, b)],
        [dtypes.bool, dtype, dtype],
        chosen,
        ["WHERE"],
    )


def converted(values: Array, target: DType) -> Array:
    """Expected result of a conversion; `tiny_cpu.render` has the rule for those that do not fit."""
    kind = to_numpy_dtype(target)
    if target.kind == "bool":
        holds: Array = values != 0
        return holds
    if values.dtype.kind != "f" or target.kind == "float":
        half = target is dtypes.float16 and values.dtype == numpy.float64
        return values.astype(numpy.float32).astype(kind) if half else values.astype(kind)
    wide = target.itemsize == 8 or target is dtypes.uint32
    least = -(2**63) if wide else -(2**31)
    greatest = 2**64 if target is dtypes.uint64 else -least

    def one(value: float) -> int:
        return int(value) if least <= numpy.trunc(value) < greatest else least

    return bits_of([one(float(v)) for v in values], numpy.zeros(1, kind))


@pytest.mark.parametrize("source", NATIVE, ids=lambda d: d.name)
def test_conversions(cpu: Bench, source: DType) -> None:
    targets = [d for d in NATIVE if d is not source]
    check(
        cpu,
        lambda a: [a.cast(d) for d in targets],
        [source],
        lambda a: [converted(a, d) for d in targets],
        [f"to {d.name}" for d in targets],
    )


@pytest.mark.parametrize("source", [*INTS, *FLOATS], ids=lambda d: d.name)
def test_same_bits_as_another_type(cpu: Bench, source: DType) -> None:
    targets = [d for d in (*INTS, *FLOATS) if d.itemsize == source.itemsize and d is not source]
    if source in cpu.toolchain.renderer.emulated or not targets:
        pytest.skip("NaN may change its bits on the way through float32")
    targets = [d for d in targets if d not in cpu.toolchain.renderer.emulated]
    check(
        cpu,
        lambda a: [a.bitcast(d.vec(a.dtype.count)) for d in targets],
        [source],
        lambda a: [a.view(to_numpy_dtype(d)) for d in targets],
        [f"as {d.name}" for d in targets],
    )


def test_any_byte_but_zero_is_true(toolchain: str) -> None:
    cpu = bench_for(toolchain)
    raw = numpy.arange(SIZE, dtype=numpy.uint8) % 5
    for lanes in LANES:
        kernel = elementwise(lambda p: [p.cast(dtypes.int32)], [dtypes.bool], SIZE, lanes)
        found = cpu.run(kernel, numpy.zeros(SIZE, numpy.int32), raw)[0]
        numpy.testing.assert_array_equal(found, raw != 0)


@pytest.mark.parametrize("lanes", LANES[1:])
def test_one_bool_is_repeated_in_all_lanes(toolchain: str, lanes: int) -> None:
    cpu, raw = bench_for(toolchain), numpy.arange(SIZE) % 2 == 0
    first = load(element(2, dtypes.bool, 1, UOp.index(0)), dtypes.bool)
    same = UOp(Op.VECTORIZE, dtypes.bool.vec(lanes), (first,) * lanes)
    kernel = elementwise(lambda p: [p.eq(same)], [dtypes.bool], SIZE, lanes)

    found = cpu.run(kernel, numpy.zeros(SIZE, bool), raw, numpy.array([True]))[0]

    numpy.testing.assert_array_equal(found, raw)


def test_subnormal_numbers_are_flushed_unless_they_are_asked_for(toolchain: str) -> None:
    """By the kernels alone: the thread computes with subnormal numbers before and after."""
    one = numpy.float32(1e-40)
    with Context(DEV=f"CPU:{toolchain}"):
        x = Tensor([1e-40, -1e-40, 3.0, 2e-38]).realize()
        with Context(FLUSH_SUBNORMALS=0):
            kept = (x * 0.25).tolist()
        flushed, after = (x * 0.25).tolist(), one * numpy.float32(0.25)

        assert flushed == [0.0, 0.0, 0.75, 0.0]
        assert [n != 0 for n in kept] == [True] * 4
        with Context(FLUSH_SUBNORMALS=0):
            assert (x * 0.25).tolist() == kept
        assert x.tolist() == x.flip(0).flip(0).tolist() == x.contiguous().tolist() != flushed
    assert after != 0


FOLDED: tuple[Callable[[Tensor, Tensor, Tensor], Tensor], ...] = (
    lambda x, y, z: x * y,
    lambda x, y, z: x + y,
    lambda x, y, z: x - y,
    lambda x, y, z: x / y,
    lambda x, y, z: x * y * z,
    lambda x, y, z: x * y / z,
    lambda x, y, z: (x * y < z).cast(dtypes.float32),
    lambda x, y, z: (x != y).cast(dtypes.float32) + (x == z).cast(dtypes.float32),
    lambda x, y, z: x.bool().where(y, z) * 2,
    lambda x, y, z: x.maximum(y).minimum(z) + z,
    lambda x, y, z: (x * y).cast(dtypes.float64) * 1e30,
    lambda x, y, z: (x.cast(dtypes.float64) * 1e-30).cast(dtypes.float32) * z,
    lambda x, y, z: x.abs().log2() + y.abs().sqrt(),
    lambda x, y, z: x.sign() + y.relu(),
)
"""Programs that end in arithmetic, over numbers that may be constants or in memory."""
EXTREME = (1e-40, -1e-40, 1e-20, 1e-30, 2.0**-126, 2.0**-149, 1.0, -1e-20, 0.0, 1e38, 2.0**127)


def test_a_value_is_the_same_whether_it_was_folded(toolchain: str) -> None:
    """A random program over subnormal and other numbers, as constants, mixed, and in memory.

    `x * 1` and `x - 0` are `x`, which is moved with all its bits.
    """
    drawn = random.Random(7)
    with Context(DEV=f"CPU:{toolchain}"):
        for program in FOLDED:
            numbers = [drawn.choice(EXTREME) for _ in range(3)]
            ways = []
            for kinds in ("ccc", "mmm", "cmc"):
                xs = [
                    Tensor([n]).realize() if kind == "m" else Tensor.full((1,), n)
                    for kind, n in zip(kinds, numbers, strict=True)
                ]
                ways.append(program(*xs).item())
            ways = [math.copysign(0, w) if abs(w) < 2.0**-126 else w for w in ways]
            numpy.testing.assert_equal(ways, [ways[1]] * 3, f"{numbers}, {FOLDED.index(program)}")


VIEWED = (
    (dtypes.float16, dtypes.int16, 1 << 10),
    (dtypes.bfloat16, dtypes.uint16, 1 << 7),
    (dtypes.float32, dtypes.int32, 1 << 23),
    (dtypes.float64, dtypes.int64, 1 << 52),
)
"""Floats, integers of their width, and the bits of the least normal number."""


@pytest.mark.parametrize(("kind", "bits", "normal"), VIEWED, ids=str)
def test_a_view_of_bits_is_the_same_whether_it_was_folded(
    toolchain: str, kind: DType, bits: DType, normal: int
) -> None:
    """Bits of constants, subnormal and other, viewed as floats and back, and of floats."""
    drawn = random.Random(7)
    with Context(DEV=f"CPU:{toolchain}"):
        for number in (1, normal - 1, normal, drawn.randrange(normal)):

            def floats(number: int = number) -> Tensor:
                return Tensor.full((1,), number, dtype=bits).bitcast(kind)

            def constant(value: float = floats().item()) -> Tensor:
                return Tensor.full((1,), value, dtype=kind)

            assert floats().bitcast(bits).item() == number
            assert floats().contiguous().realize().bitcast(bits).item() == number
            stored = constant().contiguous().realize().bitcast(bits).item()
            assert constant().bitcast(bits).item() == stored, f"{number} as {kind}"
            assert Tensor.cat(constant(), floats()).bitcast(bits).tolist() == [stored, number]
