"""Level 2: every op on every dtype, beside the reference evaluator.

One trial for each op and dtype; a trial needs the capability of its dtypes.
"""

from __future__ import annotations

import math
import zlib
from typing import Final, NamedTuple

import numpy

from tiny_testing.suite.case import Level, Variant, case
from tiny_testing.suite.compare import ULPS, check, check_exact, unit_of
from tiny_testing.suite.subject import Array, Subject
from tinycore import Context, Tensor
from tinycore.dtype import DType, dtypes, float_layout, to_numpy_dtype
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, COMPARISON, SHIFTS, Op
from tinycore.uop.verify import BIT_OPS, FLOAT_ONLY_OPS, INTEGER_OPS

__all__ = [
    "inputs_for",
    "test_a_cast",
    "test_a_product_added",
    "test_an_operation",
    "test_division_is_rounded_correctly",
    "test_special_values",
    "test_subnormals_are_kept",
    "test_the_same_bits",
]

VALUE_COUNT: Final = 101
"""Elements: odd, so that vectors have a remainder."""
ONE_DTYPE: Final = ALU - {Op.CAST, Op.BITCAST, Op.MULACC}


class Operation(NamedTuple):
    """An op on operands of a dtype."""

    op: Op
    dtype: DType


class Conversion(NamedTuple):
    """One dtype into another."""

    source: DType
    target: DType


def takes(op: Op, dtype: DType) -> bool:
    """True if an op is defined for a dtype."""
    kind = dtype.kind
    if op is Op.THREEFRY:
        return dtype is dtypes.uint64
    if kind == "bool":
        return op not in FLOAT_ONLY_OPS | INTEGER_OPS | {Op.NEG, Op.SUB}
    if kind == "float":
        return op not in INTEGER_OPS | BIT_OPS
    return op not in FLOAT_ONLY_OPS


def words_of(*kinds: DType) -> frozenset[str]:
    """The capabilities that dtypes are."""
    return frozenset(kind.name for kind in kinds)


OPERATIONS: Final = tuple(
    Variant(f"{op.name}-{dtype.name}", Operation(op, dtype), words_of(dtype))
    for dtype in dtypes.all
    for op in sorted(ONE_DTYPE, key=lambda op: op.name)
    if takes(op, dtype)
)

CONVERSIONS: Final = tuple(
    Variant(f"{a.name}-{b.name}", Conversion(a, b), words_of(a, b))
    for a in dtypes.all
    for b in dtypes.all
    if a is not b
)

SAME_WIDTH: Final = tuple(
    Variant(f"{a.name}-{b.name}", Conversion(a, b), words_of(a, b))
    for a in dtypes.all
    for b in dtypes.all
    if a is not b and a.itemsize == b.itemsize and dtypes.bool not in (a, b)
)

FLOAT_VARIANTS: Final = tuple(
    Variant(dtype.name, dtype, words_of(dtype)) for dtype in dtypes.all if dtypes.is_float(dtype)
)
NATIVE_FLOATS: Final = tuple(v for v in FLOAT_VARIANTS if v.name in ("float32", "float64"))


# --- operands


def generator(*words: object) -> numpy.random.Generator:
    """Random numbers that are the same in every run of a trial."""
    return numpy.random.default_rng(zlib.crc32(" ".join(map(str, words)).encode()))


def inputs_for(dtype: DType, count: int, seed: object, size: int = VALUE_COUNT) -> list[Array]:
    """Operands of a dtype, with its edges among them where it is an integer."""
    random = generator(dtype.name, seed)
    if dtype is dtypes.bool:
        return [random.random(size) < 0.5 for _ in range(count)]
    if dtypes.is_float(dtype):
        return [signed_numbers(random, size) for _ in range(count)]
    low, high = int(dtypes.min(dtype)), int(dtypes.max(dtype))
    edges = [0, 1, low, high, high - 1, low + 1, 2, 3][:size]
    found = []
    for _ in range(count):
        wide = random.integers(low, high, size, dtype=to_numpy_dtype(dtype), endpoint=True)
        small = random.integers(max(low, -9), 9, size).astype(wide.dtype)
        values = numpy.where(random.random(size) < 0.5, wide, small)
        places = random.choice(size, len(edges), replace=False)
        values[places] = numpy.array(edges).astype(wide.dtype) if low else edges
        found.append(values)
    return found


def signed_numbers(random: numpy.random.Generator, size: int) -> Array:
    """Floats between a quarter and 4 of both signs: products stay in the range of every float."""
    signs = random.choice([-1.0, 1.0], size)
    return numpy.asarray(numpy.exp2(random.uniform(-2, 2, size)) * signs)


DOMAINS: Final = {
    Op.SQRT: (0.0, 4.0),
    Op.LOG: (0.25, 4.0),
    Op.LOG2: (0.25, 4.0),
    Op.SIN: (-10.0, 10.0),
    Op.TRUNC: (-9.0, 9.0),
}
"""Ranges of the operands of functions of floats."""


def operands_of(op: Op, dtype: DType) -> list[Array]:
    """Operands for an op."""
    if op in SHIFTS:
        first, _ = inputs_for(dtype, 2, op)
        return [
            first,
            generator(op, dtype).integers(0, dtype.bits, VALUE_COUNT).astype(first.dtype),
        ]
    if op is Op.WHERE:
        return [generator(op, dtype).random(VALUE_COUNT) < 0.5, *inputs_for(dtype, 2, op)]
    if op in DOMAINS:
        values = generator(op, dtype.name).uniform(*DOMAINS[op], VALUE_COUNT)
        if dtype in (dtypes.float32, dtypes.float64) and op is not Op.TRUNC:
            values[:20] = numpy.abs(values[:20]) * 1000.0
        return [values]
    return inputs_for(dtype, op.arity, op)


def tensors_of(subject: Subject, op: Op, dtype: DType) -> list[Tensor]:
    """The operands on the device."""
    kinds = [dtypes.bool, dtype, dtype] if op is Op.WHERE else [dtype] * op.arity
    arrays = operands_of(op, dtype)
    return [subject.tensor(a, kind) for a, kind in zip(arrays, kinds, strict=True)]


# --- one op


@case(Level.COMPUTE, over=OPERATIONS)
def test_an_operation(subject: Subject, operation: Operation) -> None:
    """An op on a dtype gives what the reference evaluator gives, within the table of tolerances."""
    op, dtype = operation
    inputs = tensors_of(subject, op, dtype)
    if op in ULPS:
        check_exact(subject, op, dtype, *inputs)
        return
    result = dtypes.bool if op in COMPARISON else dtype

    def apply(*operands: Tensor) -> Tensor:
        return Tensor.from_uop(UOp(op, result, tuple([t.uop for t in operands])))

    check(subject, apply, *inputs)


@case(Level.COMPUTE, over=FLOAT_VARIANTS)
def test_a_product_added(subject: Subject, dtype: DType) -> None:
    """a * b + c, rounded once or twice, in floats."""
    a, b, c = (subject.tensor(x, dtype) for x in inputs_for(dtype, 3, "mulacc"))
    size = numpy.abs(a.numpy() * b.numpy()) + numpy.abs(c.numpy())

    def apply(*operands: Tensor) -> Tensor:
        return Tensor.from_uop(UOp(Op.MULACC, dtype, tuple([t.uop for t in operands])))

    check(subject, apply, a, b, c, slack=size * unit_of(dtype))


@case(Level.COMPUTE, over=CONVERSIONS)
def test_a_cast(subject: Subject, conversion: Conversion) -> None:
    """A cast truncates, cuts and rounds as docs/numerics.md says."""
    source, target = conversion
    (values,) = inputs_for(source, 1, "cast")
    if dtypes.is_float(source):
        values = values * (8.0 if float_layout(source).greatest > 100 else 1.0)
        if dtypes.is_unsigned(target):
            values = numpy.abs(values)
    check(subject, lambda x: x.cast(target), subject.tensor(values, source))


@case(Level.COMPUTE, over=SAME_WIDTH)
def test_the_same_bits(subject: Subject, conversion: Conversion) -> None:
    """A bitcast keeps every bit."""
    source, target = conversion
    (values,) = inputs_for(source, 1, "bitcast")
    x = subject.tensor(values, source)
    check(subject, lambda x: Tensor.from_uop(UOp(Op.BITCAST, target, (x.uop,))), x)


# --- what docs/numerics.md promises at the edges


@case(Level.COMPUTE, "special_values", over=NATIVE_FLOATS)
def test_special_values(subject: Subject, dtype: DType) -> None:
    """Infinities and NaN come out of arithmetic, comparisons and extremes as IEEE 754 has them."""
    edges = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e30, -2.5]
    pairs = numpy.array([(x, y) for x in edges for y in edges])
    a, b = subject.tensor(pairs[:, 0], dtype), subject.tensor(pairs[:, 1], dtype)
    for apply in (
        *(lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y),
        *(lambda x, y: x < y, lambda x, y: x == y, lambda x, y: x != y),
        *(lambda x, y: x.maximum(y), lambda x, y: x.minimum(y), lambda x, y: x.isnan() | y.isinf()),
    ):
        check(subject, apply, a, b)
    for function in (Tensor.exp, Tensor.log, Tensor.sqrt):
        check(subject, function, a, slack=lambda e: numpy.abs(e) * 4 * unit_of(dtype))


@case(Level.COMPUTE, "subnormals", over=NATIVE_FLOATS)
def test_subnormals_are_kept(subject: Subject, dtype: DType) -> None:
    """Numbers below the normal range are added, halved and moved without being flushed to zero.

    A processor keeps them where it is told so.
    """
    least = math.ldexp(1, float_layout(dtype).least_exponent)
    values = numpy.array([least, least / 4, -least / 8, least / 1024, 3 * least])
    x = subject.tensor(values, dtype)
    for apply in (lambda x: x * 0.5, lambda x: x + x, lambda x: x - least, lambda x: x.flip(0)):
        with Context(FLUSH_SUBNORMALS=0):
            check(subject, apply, x)


@case(Level.COMPUTE, "rounding", over=NATIVE_FLOATS)
def test_division_is_rounded_correctly(subject: Subject, dtype: DType) -> None:
    """Quotients and square roots are the floats nearest to the exact ones."""
    a, b = (subject.tensor(x, dtype) for x in inputs_for(dtype, 2, "rounding", 4000))
    check(subject, lambda x, y: x / y, a, b)
    check(subject, lambda x: x.abs().sqrt(), a)
