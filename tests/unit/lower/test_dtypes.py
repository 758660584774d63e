"""Types a target can only store, against the interpreter, which has them as they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy
import pytest

from tiny_testing.kernels import Array, Bench, element, elementwise, load, store
from tinycore.builtin.interpreter import PythonCompiler, PythonRenderer, PythonRuntime
from tinycore.device.protocols import Toolchain
from tinycore.dtype import DType, dtypes
from tinycore.errors import UnsupportedError
from tinycore.lower.dtypes import lower_dtypes
from tinycore.lower.pipeline import lower
from tinycore.uop.evaluate import from_bits, round_to, to_bits
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op
from tinycore.uop.rewrite import rewrite

SMALL = (dtypes.float16, dtypes.bfloat16, *dtypes.fp8s)
EACH = pytest.mark.parametrize("dtype", SMALL, ids=lambda d: d.name)


class Emulating(PythonRenderer):
    """The interpreter, denying that it has small floats."""

    emulated: ClassVar[frozenset[DType]] = frozenset(SMALL)


CONVERTED = (dtypes.float16, dtypes.bfloat16, dtypes.fp8e5m2)


class Converting(Emulating):
    """The interpreter, which converts small floats and has no other arithmetic on them."""

    converts: ClassVar[frozenset[DType]] = frozenset(CONVERTED)


RUNTIME = PythonRuntime(0, "")
EMULATING = Bench(RUNTIME, Toolchain("PYTHON", "", Emulating(), PythonCompiler()))
CONVERTING = Bench(RUNTIME, Toolchain("PYTHON", "", Converting(), PythonCompiler()))
PLAIN = Bench(RUNTIME, Toolchain("PYTHON", "", PythonRenderer(), PythonCompiler()))


def codes(dtype: DType) -> Array:
    """Every bit pattern of an 8-bit type; of a longer one the extremes, and some of the others."""
    if dtype.bits == 8:
        return numpy.arange(256, dtype=numpy.uint8)
    random = numpy.random.default_rng(2).integers(0, 1 << 16, 4096, dtype=numpy.uint16)
    for place, magnitude in enumerate((0, 1, 0x3FF, 0x400, 0x7F, 0x80, 0x7C00, 0x7F80, 0x7FFF)):
        random[2 * place : 2 * place + 2] = [magnitude, magnitude | 0x8000]
    return random


def on_grid(
    function: Callable[..., Sequence[UOp]], inputs: Sequence[DType], size: int, lanes: int = 1
) -> UOp:
    """An elementwise kernel whose elements the interpreter does all at once."""
    return elementwise(function, inputs, size, lanes, AxisKind.GRID)


def numbers(dtype: DType) -> Array:
    """float32 values at which rounding to the type decides something."""
    every = EMULATING.run(
        on_grid(lambda a: [a.cast(dtypes.float32)], [dtype], codes(dtype).size),
        numpy.zeros(codes(dtype).size, numpy.float32),
        codes(dtype),
    )[0]
    finite = numpy.unique(every[numpy.isfinite(every)])
    middle = ((finite[1:].astype(float) + finite[:-1]) / 2).astype(numpy.float32)
    above, below = numpy.nextafter(middle, math.inf), numpy.nextafter(middle, -math.inf)
    special = numpy.array([math.nan, math.inf, -math.inf, 3e38, -3e38, -0.0, 1e-45])
    return numpy.concatenate([finite, middle, above, below, special]).astype(numpy.float32)


@EACH
def test_every_value_is_read_exactly(dtype: DType) -> None:
    bits = codes(dtype)
    kernel = on_grid(lambda a: [a.cast(dtypes.float32)], [dtype], bits.size)
    found = EMULATING.run(kernel, numpy.zeros(bits.size, numpy.float32), bits)[0]
    expected = PLAIN.run(kernel, numpy.zeros(bits.size, numpy.float32), bits)[0]

    number = ~numpy.isnan(expected)
    signs = numpy.signbit(found[number]), numpy.signbit(expected[number])
    numpy.testing.assert_array_equal(found, expected)
    numpy.testing.assert_array_equal(*signs)


@EACH
def test_rounding_is_to_nearest_even(dtype: DType) -> None:
    values = numbers(dtype)
    kernel = on_grid(lambda a: [a.cast(dtype)], [dtypes.float32], values.size)
    found = EMULATING.run(kernel, numpy.zeros(values.size, f"u{dtype.itemsize}"), values)[0]

    for value, bits in zip(values.tolist(), found.tolist(), strict=True):
        expected = round_to(dtype, value)
        if math.isnan(expected):
            assert is_nan(bits, dtype), value
        else:
            assert bits == to_bits(expected, dtype), value


def is_nan(bits: int, dtype: DType) -> bool:
    value = from_bits(bits, dtype)
    return value != value


@EACH
def test_arithmetic_rounds_at_the_end(dtype: DType) -> None:
    bits = codes(dtype)
    other = numpy.random.default_rng(0).permutation(bits)

    def build(a: UOp, b: UOp) -> list[UOp]:
        wide, wider = a.cast(dtypes.float32), b.cast(dtypes.float32)
        return [a * b + a, (wide * wider + wide).cast(dtype)]

    kernel = on_grid(build, [dtype, dtype], bits.size)
    found, expected, *_ = EMULATING.run(kernel, bits * 0, bits * 0, bits, other)
    numpy.testing.assert_array_equal(found, expected)


@EACH
def test_choice_and_comparison(dtype: DType) -> None:
    bits = codes(dtype)
    other = numpy.random.default_rng(1).permutation(bits)
    kernel = on_grid(lambda a, b: [(a < b).where(a, b)], [dtype, dtype], bits.size)
    found = EMULATING.run(kernel, bits * 0, bits, other)[0]
    expected = PLAIN.run(kernel, bits * 0, bits, other)[0]

    number = numpy.array([not is_nan(b, dtype) for b in expected.tolist()])
    numpy.testing.assert_array_equal(found[number], expected[number])


@EACH
def test_vectors_are_emulated_like_scalars(dtype: DType) -> None:
    bits = codes(dtype)

    def build(a: UOp) -> list[UOp]:
        return [a * 3.0, a.cast(dtypes.float32).cast(dtype)]

    scalar = EMULATING.run(on_grid(build, [dtype], bits.size), bits * 0, bits * 0, bits)
    vector = EMULATING.run(on_grid(build, [dtype], bits.size, 4), bits * 0, bits * 0, bits)
    numpy.testing.assert_array_equal(scalar, vector)


@EACH
def test_what_decides_sees_rounded_values(dtype: DType) -> None:
    def build(a: UOp, third: UOp) -> list[UOp]:
        return [(a * 0.34375).ne(third), (a * 0.34375).cast(dtypes.int32)]

    bits = codes(dtype)
    third = PLAIN.run(on_grid(lambda a: [a * 0.34375], [dtype], bits.size), bits * 0, bits)[0]
    kernel = on_grid(build, [dtype, dtype], bits.size)
    start = (numpy.zeros(bits.size, numpy.bool_), numpy.zeros(bits.size, numpy.int32))
    expected = PLAIN.run(kernel, *start, bits, third)
    found = EMULATING.run(kernel, *start, bits, third)

    number = numpy.array([not is_nan(b, dtype) for b in third.tolist()])
    assert not found[0][number].any()
    numpy.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", CONVERTED, ids=lambda d: d.name)
def test_conversions_by_instructions_change_no_result(dtype: DType, lanes: int) -> None:
    def build(a: UOp, b: UOp) -> list[UOp]:
        total = a * b + a
        chosen = [(a < b).where(a, b), (a < b).where(total, b), a.ne(total)]
        return [total, *chosen, total.cast(dtypes.int32)]

    bits = codes(dtype)
    other = numpy.random.default_rng(3).permutation(bits)
    kernel = on_grid(build, [dtype, dtype], bits.size, lanes)
    start = (bits * 0, bits * 0, bits * 0, bits > 300, bits.astype("i"))
    found = CONVERTING.run(kernel, *start, bits, other)
    expected = EMULATING.run(kernel, *start, bits, other)

    for a, b in zip(found, expected, strict=True):
        small = numpy.array([a.dtype.itemsize < 4 and is_nan(int(x), dtype) for x in b])
        numpy.testing.assert_array_equal(a[~small], b[~small])


def test_what_a_device_converts_is_a_cast() -> None:
    x = UOp.variable("x", 0, 65535, dtypes.uint16)
    doubled = (x.bitcast(dtypes.bfloat16) * 2.0).bitcast(dtypes.uint16)
    lowered = rewrite(doubled, lower_dtypes(Converting()))
    wide = x.bitcast(dtypes.bfloat16).cast(dtypes.float32)

    assert lowered is (wide * 2.0).cast(dtypes.bfloat16).bitcast(dtypes.uint16)


def test_accumulator_stays_float32() -> None:
    counter = UOp.range(64, 0, AxisKind.REDUCE)
    value = load(element(1, dtypes.bfloat16, 64, counter), dtypes.bfloat16)
    total = UOp(Op.REDUCE, dtypes.bfloat16, (value, counter), Op.ADD)
    kernel = UOp.sink(
        UOp(Op.END, dtypes.void, (store(element(0, dtypes.bfloat16, 1, UOp.index(0)), total),))
    )
    ones = numpy.full(64, to_bits(1.0078125, dtypes.bfloat16), numpy.uint16)
    found = EMULATING.run(kernel, numpy.zeros(1, numpy.uint16), ones)[0]

    # Rounding at each of 64 steps would have lost the fractions.
    assert found[0] == to_bits(64.5, dtypes.bfloat16)


def test_maximum_starts_from_a_value_that_the_type_has() -> None:
    counter = UOp.range(4, 0, AxisKind.REDUCE)
    place = element(1, dtypes.fp8e4m3, 4, counter, gate=counter < 2)
    least = UOp.const(dtypes.fp8e4m3, dtypes.min(dtypes.fp8e4m3))
    value = load(place, dtypes.fp8e4m3, least)
    most = UOp(Op.REDUCE, dtypes.fp8e4m3, (value, counter), Op.MAX)
    change = store(element(0, dtypes.fp8e4m3, 1, UOp.index(0)), most)
    kernel = UOp.sink(UOp(Op.END, dtypes.void, (change,)))
    threes = numpy.full(4, to_bits(-3.0, dtypes.fp8e4m3), numpy.uint8)
    found = EMULATING.run(kernel, numpy.zeros(1, numpy.uint8), threes)[0]

    assert found[0] == threes[0]


def test_memory_is_of_the_integer() -> None:
    kernel = on_grid(lambda a: [a * 2.0], [dtypes.bfloat16], 4)
    lowered = rewrite(kernel, lower_dtypes(Emulating()))

    assert {n.dtype.scalar() for n in lowered.toposort() if n.op is Op.LOAD} == {dtypes.uint16}
    assert dtypes.bfloat16 not in {n.dtype for n in lowered.toposort()}


def test_gated_load_has_the_bits_of_its_alternative() -> None:
    counter = UOp.range(8, 0)
    place = element(1, dtypes.bfloat16, 8, counter, gate=counter < 4)
    value = load(place, dtypes.bfloat16, UOp.const(dtypes.bfloat16, 2.0))
    change = store(element(0, dtypes.bfloat16, 8, counter), value)
    kernel = UOp.sink(UOp(Op.END, dtypes.void, (change, counter)))
    ones = numpy.full(8, to_bits(1.0, dtypes.bfloat16), numpy.uint16)
    found = EMULATING.run(kernel, numpy.zeros(8, numpy.uint16), ones)[0]

    two = to_bits(2.0, dtypes.bfloat16)
    assert found.tolist() == [ones[0]] * 4 + [two] * 4


def test_same_bits_need_no_conversion() -> None:
    x = UOp.variable("x", 0, 65535, dtypes.uint16)
    there_and_back = x.bitcast(dtypes.bfloat16).bitcast(dtypes.uint16)

    assert rewrite(there_and_back, lower_dtypes(Emulating())) is x


def test_double_goes_to_half_by_single() -> None:
    x = UOp.variable("x", 0, 1, dtypes.float64)
    lowered = rewrite(x.cast(dtypes.float16), lower_dtypes(PythonRenderer()))

    assert lowered is x.cast(dtypes.float32).cast(dtypes.float16)


class WithoutDouble(PythonRenderer):
    """The interpreter, denying that it has float64."""

    lacking: ClassVar[frozenset[DType]] = frozenset({dtypes.float64})


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
def test_a_type_that_the_target_has_not_at_all_is_refused(dtype: DType) -> None:
    kernel = on_grid(lambda a: [a + a], [dtype], 8)

    if dtype is dtypes.float32:
        assert lower(kernel, WithoutDouble(), "kernel").uops
        return
    with pytest.raises(UnsupportedError, match=r"has no float64, .* `x.cast\(dtypes.float32\)`"):
        lower(kernel, WithoutDouble(), "kernel")


@pytest.mark.parametrize(
    ("integer", "dtype", "is_rounded"),
    [
        (dtypes.int8, dtypes.bfloat16, False),
        (dtypes.uint8, dtypes.bfloat16, False),
        (dtypes.int16, dtypes.bfloat16, True),
        (dtypes.int16, dtypes.float16, True),
        (dtypes.int8, dtypes.fp8e4m3, True),
    ],
)
def test_integers_that_a_type_holds_are_not_rounded(
    integer: DType, dtype: DType, is_rounded: bool
) -> None:
    least, greatest = dtypes.min(integer), dtypes.max(integer)
    every = numpy.arange(least, greatest + 1, 1 + (greatest - least) // 500).astype(integer.name)
    ast = on_grid(lambda a: [a.cast(dtype).cast(dtypes.float32) * 2], [integer], every.size)
    lowered = lower(ast, Emulating(), "kernel").uops
    data = numpy.zeros(every.size, numpy.float32), every

    assert any(n.op is Op.SHR for n in lowered) == is_rounded
    assert numpy.array_equal(EMULATING.run(ast, *data)[0], 2 * every.astype("f")) != is_rounded


def test_stored_integers_have_the_bits_of_the_type() -> None:
    every = numpy.arange(-128, 128).astype(numpy.int8)
    ast = on_grid(lambda a: [a.cast(dtypes.bfloat16)], [dtypes.int8], 256)

    (bits,) = EMULATING.run(ast, numpy.zeros(256, numpy.uint16), every)[:1]
    assert numpy.array_equal(bits, every.astype("f").view(numpy.uint32) >> 16)
