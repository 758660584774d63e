"""Every function of tensors at the edges of its dtype, values and gradients, against torch.

A value is right if it is that of torch in float64, rounded, or that of torch in the same dtype:
where both overflow, a user of either knows it. A gradient that torch says is infinite or NaN may be
either. What differs nevertheless is listed in KEPT, each with the reason. Functions at a few edges,
by name, are in `test_edges.py`.
"""

from __future__ import annotations

import contextlib
import math
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy
import pytest
import torch

from tinycore.config import Context
from tinycore.tensor import Tensor

pytestmark = pytest.mark.slow

MOST_QUOTIENT: Final = 2.0**40


def far_quotient(a: float, b: float = 2.0) -> bool:
    """True where a remainder is undefined, or of a quotient beyond those that are exact."""
    return not (b and math.isfinite(a) and abs(a / b) < MOST_QUOTIENT)


Function = Callable[..., Any]
Pair = tuple[Function, Function]

inf, nan = math.inf, math.nan
functional: Any = torch.nn.functional

MAGNITUDES: Final = [
    *(0.0, 1e-45, 1e-40, 1e-38, 2.0**-126, 1e-30, 1e-20, 1e-10, 1e-5, 0.1, 0.5, 0.99999, 1.0),
    *(1.00001, 1.5, 2.0, 2.5, 3.0, 10.0, 50.0, 88.0, 89.0, 104.0, 1e3, 1e5, 1e10, 1e18, 1e20),
    *(1e38, 3.4028235e38, inf),
]
OPERANDS: Final = [0.0, 1e-45, 1e-38, 1e-20, 0.5, 1.0, 1.5, 2.0, 3.0, 88.0, 1e10, 1e20, 1e38, inf]
ROWS: Final = [
    *([1, 2, 3, 4], [0, 0, 0, 0], [-0.0, 0, -0.0, 0], [1, 1, 1, 1], [3, 3, 1, 1], [0, 1, 2, 0]),
    *([1e20, 3e20, -1e20, 2e20], [1e-25, 3e-25, -1e-25, 2e-25], [1e38, 1e38, 1e38, -1e38]),
    *([3e38, 3e38, 3e38, 3e38], [1e-38, 2e-38, 3e-38, 1e-38], [1e-45, 3e-45, 1e-44, 1e-45]),
    *([inf, 1, 2, 3], [-inf, 1, 2, 3], [-inf, -inf, 1, 2], [-inf, -inf, -inf, -inf]),
    *([inf, inf, 1, 0], [inf, -inf, 1, 0], [nan, 1, 2, 3], [1, 2, nan, -inf], [0, 0, 2, 3]),
    *([88, 89, 90, 100], [-88, -104, -200, -300], [1000, 1001, 999, 0], [1e-20, 1, 1e20, 0]),
]
"""Rows to reduce: ties, zeros, both ends of the range, infinities, NaN."""
OVERFLOWING: Final = [place for place, row in enumerate(ROWS) if row == [3e38] * 4]


def both(function: Function) -> Pair:
    """A function that is written alike for both."""
    return function, function


def method(name: str, peer: Function) -> Pair:
    """A method, and the function that it is held to."""
    return lambda *x: getattr(x[0], name)(*x[1:]), peer


UNARY: Final[dict[str, Pair]] = {
    **{
        name: method(name, getattr(torch, name))
        for name in (
            "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp exp2 expm1 floor log log10 "
            "log1p log2 neg reciprocal round rsqrt sigmoid sign sin sinh sqrt square tan tanh "
            "trunc isnan isinf isfinite logical_not"
        ).split()
    },
    **{
        name: method(name, getattr(functional, name))
        for name in (
            "relu elu celu hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu "
            "silu softplus softsign"
        ).split()
    },
    "gelu": (lambda x: x.gelu(), lambda x: functional.gelu(x, approximate="tanh")),
    "clamp": both(lambda x: x.clamp(-1, 2)),
    "remainder of 2": both(lambda x: x % 2),
    "2 over": both(lambda x: 2 / x),
    **{f"power {e}": both(lambda x, e=e: x**e) for e in (2, 3, 0.5, -1, -0.5, 1.5, 0, -2, 1 / 3)},
    **{f"power of {b}": both(lambda x, b=b: b**x) for b in (2.0, 0.5, 0.0, 1.0, 10.0)},
}

BINARY: Final[dict[str, Pair]] = {
    **{
        name: method(name, getattr(torch, name))
        for name in "maximum minimum pow fmod atan2 copysign logaddexp hypot".split()
    },
    **{
        name: both(getattr(operator, name))
        for name in "add sub mul truediv mod lt le gt ge eq ne".split()
    },
    "lerp": both(lambda a, b: a.lerp(b, 0.25)),
    "lerp far": both(lambda a, b: a.lerp(b, 0.75)),
}

REDUCING: Final[dict[str, Pair]] = {
    **{
        name: both(lambda x, name=name: getattr(x, name)(1))
        for name in "sum mean amax amin prod std var logsumexp cumsum cumprod argmax argmin".split()
    },
    **{
        name: both(lambda x, name=name: getattr(x, name)(1)[0])
        for name in "cummax cummin sort median".split()
    },
    "std of all": both(lambda x: x.std(1, correction=0)),
    "softmax": both(lambda x: x.softmax(1)),
    "log_softmax": both(lambda x: x.log_softmax(1)),
    "logcumsumexp": both(lambda x: x.logcumsumexp(1)),
    "order": (lambda x: x.sort(1)[1], lambda x: x.sort(dim=1, stable=True)[1]),
    **{f"norm {p}": both(lambda x, p=p: x.norm(p, 1)) for p in (1, 2, 3, inf)},
    "normalize": (lambda x: x.normalize(), functional.normalize),
    "layer norm": (lambda x: x.layernorm(), lambda x: functional.layer_norm(x, (x.shape[1],))),
    "any": both(lambda x: x.any(1)),
    "all": both(lambda x: x.all(1)),
    **{f"quantile {q}": both(lambda x, q=q: x.quantile(q, 1)) for q in (0.25, 0.3, 0.5)},
    "greatest pool": (
        lambda x: x.reshape(1, 1, -1, 4).max_pool2d((1, 2)),
        lambda x: functional.max_pool2d(x.reshape(1, 1, -1, 4), (1, 2)),
    ),
}

NORMALIZING: Final = ("softmax", "normalize", "layer norm")
"""Functions with a constant sum, whose gradients are 0 but for rounding."""


def is_overflow(place: float, *rest: float) -> bool:
    """True for a row whose sum overflows."""
    return place in OVERFLOWING


class Kept(NamedTuple):
    """A difference on purpose: of a function, where its arguments fulfill a condition."""

    name: str
    reason: str
    holds: Callable[..., bool] = lambda *x: True


KEPT: Final = (
    Kept("abs d0", "1: a NaN has the sign of its bits", math.isnan),
    Kept("sign value", "NaN, as in NumPy", math.isnan),
    Kept("norm 1 d0", "as of abs", math.isnan),
    Kept("norm inf d0", "NaN for all, as of amax"),
    *[
        Kept(f"{name} d0", "a slope of 0 or NaN where the value is NaN", math.isnan)
        for name in "elu celu hardswish hardtanh relu6 selu clamp".split()
    ],
    Kept("expm1 d0", "exp(a): torch adds 1 to the rounded value", lambda a: a < -10),
    Kept("sigmoid d0", "s * (1 - s) is 0 in torch, as 1 - s is rounded", lambda a: a >= 10),
    Kept("tanh d0", "1 - t**2 is 0 in torch, as t is rounded", lambda a: abs(a) > 5),
    Kept(
        "gelu", "sigmoid of twice as much, where torch adds 1 to a tanh near -1", lambda a: a < -3
    ),
    Kept("hardsigmoid", "a sixth; in torch that of float32"),
    Kept("mish d0", "the limit; NaN in torch", math.isinf),
    Kept("softsign d0", "1 / (1 + |a|)**2 without cancellation", lambda a: abs(a) > 1e3),
    Kept("hardswish d0", "0 at a zero of the slope but for rounding", lambda a: a == -1.5),
    Kept("power 0.5", "IEEE 754's power", lambda a: a == -inf),
    Kept("power -0.5", "IEEE 754's power", lambda a: a in (-inf, 0)),
    Kept("power 1.5", "IEEE 754's power", lambda a: a == -inf),
    *[
        Kept(name, "exact up to quotients of 2**40, then 0; no slope where NaN", far_quotient)
        for name in ("remainder of 2", "fmod", "mod")
    ],
    *[
        Kept(f"{name} d1", "of the exact quotient; rounded in torch", lambda a, b: abs(a / b) > 1e6)
        for name in ("fmod", "mod")
    ],
    Kept("copysign d0", "1 or -1; NaN in torch", lambda a, b: not math.isfinite(a)),
    Kept("copysign value", "a NaN has a sign", lambda a, b: math.isnan(b)),
    Kept("logaddexp d", "the slope of the first of equals; NaN in torch", lambda a, b: a == b),
    Kept("truediv d1", "the reciprocal overflows, as in JAX", lambda a, b: abs(b) < 2.0**-126),
    Kept("std", "the mean overflows; torch has float64 inside", is_overflow),
    Kept("var", "the mean overflows; torch has float64 inside", is_overflow),
    Kept("std", "subnormal distances are rounded", lambda *at: abs(at[0]) < 2.0**-126),
    Kept("logsumexp d0", "the softmax, of sum 1; 1 for each of equals in torch"),
    Kept("logcumsumexp d0", "as of logsumexp"),
    Kept("cumprod d0", "factors beside infinities"),
    Kept("log_softmax value", "a logarithm near 1 has the digits that its argument has"),
    Kept("layer norm", "squares overflow: 0, NaN in torch", lambda a: True),
    Kept(
        "quantile", "infinite beside an infinity; at times NaN in torch", lambda *at: len(at) == 1
    ),
    Kept("greatest pool d0", "equals share the slope; the first has it in torch"),
)
"""Differences of the sweep from torch, with the reasons (docs/numerics.md)."""
FLUSHED: Final = (
    *[
        Kept(f"{name} d0", "a divisor of ln 2 or more times less", lambda a: abs(a) < 2.0**-125)
        for name in ("log2", "log10")
    ],
    *[Kept(name, "a factor of exp(a) or less", lambda a: a < -87) for name in ("mish", "silu")],
    Kept("pow d1", "the power is subnormal, its logarithm is not", lambda a, b: a**b < 2.0**-126),
    Kept("std", "a sum of distances of some 2**-126", lambda *at: abs(at[0]) < 2.0**-124),
)
"""Further ones where subnormal numbers are 0: what is between is one. All are within some 2**7 of
the end of the range."""


def outcomes(function: Function, columns: Sequence[Any]) -> list[Any]:
    """The value and the gradients of the sum of a function, as arrays of float64."""
    found = function(*columns)
    is_float = "float" in str(found.dtype)
    if isinstance(found, Tensor):
        gradients = found.sum().gradient(*columns) if is_float else ()
        results = [x.cast("float64") for x in (found, *gradients)]
        Tensor.realize(*results)  # at once: in two thirds of the kernels
        return [x.numpy() for x in results]
    slopes = []
    if is_float and found.requires_grad:
        found.sum().backward()
        slopes = [torch.zeros(()) if x.grad is None else x.grad for x in columns]
    return [x.detach().double().numpy() for x in (found, *slopes)]


def differences(
    name: str, pair: Pair, arrays: Sequence[Any], dtype: str, least: float = 0.0
) -> list[str]:
    """Places at which a function differs from torch in float64 and from torch in its own dtype.

    Numbers below `least` are 0 in the arguments, and as good as 0 in the results.
    """
    kind = getattr(torch, dtype)
    arrays = [torch.tensor(a).to(kind).double().numpy() for a in arrays]
    arrays = [numpy.where(abs(a) < least, numpy.copysign(0.0, a), a) for a in arrays]
    tensors: list[Any] = [Tensor(a, dtype=dtype, requires_grad=True) for a in arrays]
    mine, peers = outcomes(pair[0], tensors), []
    for wide in (torch.float64, kind):
        theirs = [torch.tensor(a).to(kind).to(wide).requires_grad_() for a in arrays]
        with contextlib.suppress(RuntimeError):  # where torch has no function of small floats
            peers.append(outcomes(pair[1], theirs))
    digits = torch.finfo(kind).eps
    tiny = torch.finfo(kind).smallest_normal * digits * (64 if kind.itemsize > 2 else 2)
    found = []
    for place, ours in enumerate(mine):
        what = f"d{place - 1}" if place else "value"
        is_right = numpy.zeros(ours.shape, bool)
        for peer in peers if place < len(peers[0]) else []:
            with numpy.errstate(all="ignore"):
                rounded = torch.tensor(peer[place]).to(kind).double().numpy()
            near = 300 * digits if not place else 4000 * digits
            is_right |= numpy.isclose(ours, rounded, near, max(tiny, least), equal_nan=True)
            if place:
                is_right |= ~numpy.isfinite(ours) & ~numpy.isfinite(rounded)
                is_right |= abs(ours - rounded) < (4 * digits if name in NORMALIZING else 0)
        for spot in numpy.argwhere(~is_right):
            at = tuple(spot)
            is_place = ours.shape != arrays[0].shape
            where = [int(n) for n in at] if is_place else [float(a[at]) for a in arrays]
            wanted = [float(numpy.broadcast_to(p[place], ours.shape)[at]) for p in peers]
            kept = (*KEPT, *FLUSHED) if least else KEPT
            if not any(f"{name} {what}".startswith(k.name) and k.holds(*where) for k in kept):
                found.append(f"{name} {what} at {where}: {ours[at]:.7g}, torch {wanted}")
    return found


UNARY_COLUMN: Final = numpy.array([*MAGNITUDES, *[-x for x in MAGNITUDES], nan])
PAIRS: Final = [
    a.reshape(-1).copy() for a in numpy.meshgrid(*[[*OPERANDS, *[-x for x in OPERANDS], nan]] * 2)
]


def swept(dtype: str, least: float = 0.0) -> list[str]:
    """The differences of all functions in a dtype, with numbers below `least` as 0."""
    tables = ((UNARY, [UNARY_COLUMN]), (BINARY, PAIRS), (REDUCING, [numpy.array(ROWS)]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            line
            for table, arrays in tables
            for name, pair in table.items()
            for line in differences(name, pair, arrays, dtype, least)
        ]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_functions_at_the_edges_of_a_dtype_are_those_of_torch(dtype: str) -> None:
    with Context(FLUSH_SUBNORMALS=0):
        assert swept(dtype) == []


@pytest.mark.parametrize(
    ("dtype", "least"), [("float32", 2.0**-126), ("float64", 2.0**-1022), ("bfloat16", 2.0**-126)]
)
def test_edges_where_subnormal_numbers_are_flushed(dtype: str, least: float) -> None:
    """Normal arguments have the values that they have everywhere, but for subnormal results."""
    with Context(FLUSH_SUBNORMALS=1):
        assert swept(dtype, least) == []


INTEGER_FUNCTIONS: Final[dict[str, Pair]] = {
    **{
        name: both(getattr(operator, name))
        for name in "add sub mul floordiv mod and_ or_ xor lt le gt ge eq ne".split()
    },
    "maximum": method("maximum", numpy.maximum),
    "minimum": method("minimum", numpy.minimum),
    "neg": both(lambda a, b: -a),
    "invert": both(lambda a, b: ~a),
    "abs": both(lambda a, b: abs(a)),
    "square": both(lambda a, b: a * a),
    "times 3 less 7": both(lambda a, b: a * 3 - 7),
    "amax": both(lambda a, b: a.max()),
    "amin": both(lambda a, b: a.min()),
    "argmax": both(lambda a, b: a.argmax()),
    "argmin": both(lambda a, b: a.argmin()),
    "sort": (lambda a, b: a.sort()[0], lambda a, b: numpy.sort(a)),
    "order": (lambda a, b: b.argsort(), lambda a, b: numpy.argsort(b, kind="stable")),
    "sum": (lambda a, b: a.cast("int64").sum(), lambda a, b: a.astype("int64").sum()),
    "cumsum": (lambda a, b: a.cumsum(0), lambda a, b: a.cumsum(dtype=wide_of(a))),
    "clip": (lambda a, b: a.clamp(1, 100), lambda a, b: numpy.clip(a, 1, 100)),
}
"""Functions of two rows of integers, and those of NumPy."""


def wide_of(array: Any) -> str:
    """The dtype in which sums of integers are accumulated."""
    return f"{'u' if array.dtype.kind == 'u' else ''}int{max(32, array.dtype.itemsize * 8)}"


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
def test_functions_at_the_ends_of_integers_are_those_of_numpy(dtype: str) -> None:
    ends = numpy.iinfo(dtype)
    numbers = [ends.min, ends.min + 1, 0, 1, 2, 3, 7, 100, ends.max // 2, ends.max - 1, ends.max]
    numbers += [] if dtype[0] == "u" else [-1, -2, -7]
    a, b = (x.reshape(-1) for x in numpy.meshgrid(*[numpy.array(numbers, dtype)] * 2))
    ours, wrong = (Tensor(a), Tensor(b)), []
    with numpy.errstate(all="ignore"):
        for name, (mine, peer) in INTEGER_FUNCTIONS.items():
            found, expected = mine(*ours).numpy(), peer(a, b)
            if not (found == expected).all():
                wrong.append(f"{name}: {found} instead of {expected}")

    assert wrong == []
