"""Level 2: shifts by every amount and casts of every pair, in vectors as wide as the device has.

The kernels are written by hand, since plans have reasons of their own to leave vectors
out. What languages leave undefined is asked for on purpose: amounts of the width and more, and
floats that fit no integer. docs/numerics.md says what they give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy

from tiny_testing.kernels import elementwise
from tiny_testing.suite.case import Level, Variant, case
from tiny_testing.suite.compare import agree, expected_of
from tiny_testing.suite.operations import CONVERSIONS, Conversion, generator, words_of
from tiny_testing.suite.subject import Array, Subject
from tinycore import Tensor
from tinycore.dtype import DType, dtypes, float_layout, to_numpy_dtype
from tinycore.uop.host_bytes import decode, encode
from tinycore.uop.node import UOp

__all__ = [
    "test_a_cast_in_lanes",
    "test_floats_that_are_no_numbers_become_integers",
    "test_shifts_by_a_constant",
    "test_shifts_by_every_amount",
]

LANES_SIZE: Final = 256
"""Elements of an array, which vectors of every width divide."""

INTEGER_VARIANTS: Final = tuple(
    Variant(dtype.name, dtype, words_of(dtype)) for dtype in dtypes.all if dtypes.is_int(dtype)
)
FLOATS_TO_INTEGERS: Final = tuple(
    Variant(f"{a.name}-{b.name}", Conversion(a, b), words_of(a, b))
    for a in (dtypes.float32, dtypes.float64)
    for b in dtypes.all
    if dtypes.is_int(b)
)


def lanes_of(subject: Subject, *used: DType) -> int:
    """Lanes of a vector of these dtypes on a device; 1 without vectors."""
    return max(1, subject.limits.vector_bytes // max(dtype.itemsize for dtype in used))


def check_lanes(
    subject: Subject,
    lanes: int,
    function: Callable[..., Sequence[UOp]],
    expected: Sequence[Tensor],
    *inputs: Tensor,
) -> None:
    """Compare what a kernel makes of vectors with tensors that are not computed yet."""
    kernel = elementwise(function, [x.dtype for x in inputs], LANES_SIZE, lanes)
    empty = [numpy.zeros(LANES_SIZE, to_numpy_dtype(x.dtype)) for x in expected]
    given = [encode(x.numpy(), x.dtype).reshape(-1) for x in inputs]
    results = subject.bench.run(kernel, *empty, *given)
    for tensor, found in zip(expected, results, strict=False):
        agree(decode(found, tensor.dtype), expected_of(tensor, inputs), tensor.dtype)


# --- shifts


def amounts_of(dtype: DType) -> list[int]:
    """Amounts of a shift: none, one, all but one, the width and more, and less than none."""
    bits = dtype.bits
    beyond = [bits, bits + 1, 2 * bits - 1, 2 * bits, int(dtypes.max(dtype))]
    return [0, 1, bits // 2, bits - 1, *beyond, *([] if dtypes.is_unsigned(dtype) else [-1])]


def whole_numbers(dtype: DType, seed: str) -> Array:
    """Integers of a dtype of all magnitudes, its edges first."""
    random = generator(dtype.name, seed)
    least, most = int(dtypes.min(dtype)), int(dtypes.max(dtype))
    edges = [least, most, 1, least + 1, most - 1, 0, most // 2, most // 2 + 1, least // 2]
    drawn = random.integers(least, most, LANES_SIZE, to_numpy_dtype(dtype), endpoint=True)
    drawn >>= random.integers(0, dtype.bits, LANES_SIZE).astype(drawn.dtype)
    drawn[: len(edges)] = numpy.array(edges, drawn.dtype)
    return numpy.asarray(drawn)


@case(Level.COMPUTE, over=INTEGER_VARIANTS)
def test_shifts_by_every_amount(subject: Subject, dtype: DType) -> None:
    """Elements are shifted by amounts of their own, taken modulo the width; the sign is kept."""
    amounts = numpy.resize(numpy.array(amounts_of(dtype)), LANES_SIZE)
    x = subject.tensor(whole_numbers(dtype, "shifts"), dtype)
    by = subject.tensor(amounts, dtype)
    for lanes in sorted({1, lanes_of(subject, dtype)}):
        check_lanes(subject, lanes, lambda x, by: [x << by, x >> by], [x << by, x >> by], x, by)


@case(Level.COMPUTE, over=INTEGER_VARIANTS)
def test_shifts_by_a_constant(subject: Subject, dtype: DType) -> None:
    """Elements are shifted by an amount that the program states, also by the width and more."""
    x = subject.tensor(whole_numbers(dtype, "constant"), dtype)
    for amount in (0, 1, dtype.bits - 1, dtype.bits, dtype.bits + 3):

        def shifted(x: UOp, amount: int = amount) -> Sequence[UOp]:
            by = x.const_like(amount)
            return x << by, x >> by

        check_lanes(subject, lanes_of(subject, dtype), shifted, [x << amount, x >> amount], x)


# --- casts


def floats_for(source: DType, target: DType) -> Array:
    """Floats of a dtype, which fit the target where that is a float, and need not where it is not.

    Those around the ends of each width of integers are among them.
    """
    random = generator(source.name, target.name, "lanes")
    most = float_layout(source).greatest
    if dtypes.is_float(target):
        most = min(most, float_layout(target).greatest)
    ends = [2.0**bits + d for bits in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, -0.5, 0, 1)]
    near = [x for x in (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 1e30, *ends) if x <= most]
    sizes = numpy.exp2(random.uniform(-3, min(numpy.log2(most), 70.0) - 1, LANES_SIZE))
    drawn = sizes * random.choice([-1.0, 1.0], LANES_SIZE)
    edges = [*near, *(-x for x in near)]
    drawn[: len(edges)] = edges
    return numpy.asarray(random.permutation(drawn))


def check_cast(subject: Subject, conversion: Conversion, values: Array) -> None:
    """Compare a cast of some numbers, in lanes."""
    source, target = conversion
    lanes = lanes_of(subject, source, target)
    x = subject.tensor(values, source)
    check_lanes(subject, lanes, lambda x: [x.cast(target)], [x.cast(target)], x)


@case(Level.COMPUTE, over=CONVERSIONS)
def test_a_cast_in_lanes(subject: Subject, conversion: Conversion) -> None:
    """A vector of one dtype becomes one of another, also floats that fit no integer."""
    source, target = conversion
    if source is dtypes.bool:
        check_cast(subject, conversion, generator("lanes", target.name).random(LANES_SIZE) < 0.5)
    elif dtypes.is_float(source):
        check_cast(subject, conversion, floats_for(source, target))
    else:
        check_cast(subject, conversion, whole_numbers(source, "cast"))


@case(Level.COMPUTE, "special_values", over=FLOATS_TO_INTEGERS)
def test_floats_that_are_no_numbers_become_integers(
    subject: Subject, conversion: Conversion
) -> None:
    """NaN and infinities become the least integer, cut to the width, as docs/numerics.md says."""
    edges = numpy.array([numpy.nan, 1.0, numpy.inf, -2.0, -numpy.inf])
    check_cast(subject, conversion, numpy.resize(edges, LANES_SIZE))
