"""Comparison of a graph on a device with the reference evaluator, within a tolerance.

The tolerances are one table. Integers and bools are exact; so are floats, except where a
language may compute an op less exactly, as OpenCL C 3.0 (section 7.4, "Relative error as ULPs")
states for those that compute on devices, and where the order of a sum is left to the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy

from tiny_testing.reference import ARITHMETIC, evaluate
from tiny_testing.suite.subject import Array, Subject
from tinycore import Tensor
from tinycore.dtype import DType, dtypes, float_layout
from tinycore.uop.host_bytes import encode
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["ULPS", "agree", "check", "check_exact", "expected_of", "memory_of", "unit_of"]

ULPS: Final[dict[Op, float]] = {
    Op.FDIV: 2.5,
    Op.RECIPROCAL: 2.5,
    Op.SQRT: 3.0,
    Op.EXP: 4.0,
    Op.EXP2: 4.0,
    Op.LOG: 4.0,
    Op.LOG2: 4.0,
    Op.SIN: 4.0,
}
"""Units in the last place by which an op may be off in float32 and float64, 0 where it is not
named. In narrower floats, whose values are computed in float32, such an op may be off by 1."""

NARROW_ULPS: Final = 1.0


def unit_of(dtype: DType) -> float:
    """The distance from 1 to the next greater float of a dtype."""
    return math.ldexp(1, -float_layout(dtype).mantissa_bits)


def ulps_of(op: Op, dtype: DType) -> float:
    """Tolerance of an op, in units of the last place."""
    if op not in ULPS:
        return 0.0
    return ULPS[op] if dtype in (dtypes.float32, dtypes.float64) else NARROW_ULPS


def memory_of(tensors: Sequence[Tensor]) -> dict[UOp, Array]:
    """The content of realized tensors as the reference evaluator takes it."""
    return {base_of(t.uop): encode(t.numpy(), t.dtype).reshape(-1) for t in tensors if t.numel()}


def expected_of(result: Tensor, inputs: Sequence[Tensor]) -> Array:
    """The reference evaluator's result for a tensor that is not computed yet."""
    return evaluate(result.uop, memory_of(inputs))


def agree(found: Array, expected: Array, dtype: DType, slack: Array | float = 0.0) -> None:
    """Raise AssertionError, naming the element that is off the most, unless all are near enough.

    NaN agrees with NaN, and 0 with -0. `slack` is the absolute distance allowed.
    """
    assert found.shape == expected.shape, f"shape {found.shape} instead of {expected.shape}"
    if dtype.kind != "float":
        wrong = numpy.asarray(found != expected)
        distance = wrong.astype(float)
    else:
        with numpy.errstate(all="ignore"):
            exact = numpy.asarray(expected, numpy.longdouble)
            same = (found == exact) | (numpy.isnan(found) & numpy.isnan(exact))
            distance = numpy.where(same, 0, numpy.abs(found - exact))
            wrong = ~same & ~(distance <= slack)
            distance = numpy.where(wrong & ~numpy.isfinite(distance), numpy.inf, distance)
    if not wrong.any():
        return
    flat = int(numpy.argmax(numpy.where(wrong, distance, -1)))
    place = tuple(int(i) for i in numpy.unravel_index(flat, found.shape)) if found.shape else ()
    allowed = float(numpy.broadcast_to(numpy.asarray(slack, float), found.shape)[place])
    raise AssertionError(
        f"{int(wrong.sum())} of {found.size} elements of {dtype.name} are wrong; element "
        f"{place} is {found[place]!r} instead of {expected[place]!r}"
        + (f", farther than {allowed:.3g}" if allowed else "")
    )


def check(
    subject: Subject,
    function: Callable[..., Tensor],
    *inputs: Tensor,
    slack: Callable[[Array], Array | float] | Array | float = 0.0,
) -> None:
    """Compute a function of realized tensors on the device, and compare with the reference.

    `slack` is the absolute distance allowed, or a function of what is expected that gives it.
    """
    result = function(*inputs)
    expected = expected_of(result, inputs)
    allowed = slack(expected) if callable(slack) else slack
    assert result.device == subject.name, f"the result is on {result.device}"
    agree(result.numpy(), expected, result.dtype, allowed)


def check_exact(subject: Subject, op: Op, dtype: DType, *inputs: Tensor) -> None:
    """Compute one op of floats on the device, and compare with the same in a longer type.

    The distance allowed is that of `ULPS`, in units of the last place of what is expected.
    """
    result = Tensor.from_uop(UOp(op, dtype, tuple([t.uop for t in inputs])))
    wide = numpy.longdouble if dtype is dtypes.float64 else numpy.float64
    with numpy.errstate(all="ignore"):
        exact = ARITHMETIC[op](result.uop, *[t.numpy().astype(wide) for t in inputs])
        last = numpy.exp2(numpy.floor(numpy.log2(numpy.abs(exact)))) * unit_of(dtype)
        # half a unit for rounding the result, beside what the op itself may be off
        slack = numpy.where(exact == 0, 0, last * (ulps_of(op, dtype) + 0.5))
    found = result.numpy()
    agree(found.astype(wide), exact, dtype, slack)
