"""Values and gradients at the edges of functions: zeros, infinities, NaN, outside of the domain.

Every function is compared with torch over one table of special values. What differs on purpose is
listed in KEPT, each with the reason.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy
import pytest
import torch

from tinycore.config import Context
from tinycore.errors import ArgumentError
from tinycore.tensor import Tensor

inf, nan = math.inf, math.nan

SPECIAL = [
    *(0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, inf, -inf, nan, 1e-30, -1e-30),
    *(1e10, -1e10, 100.0, -100.0, 1e5, -1e5, 88.0, -88.0, 104.0, -104.0, 0.99999, 1.00001),
]
EXPONENTS = [
    *(0, 1, 2, 3, 4, 5, -1, -2, -3, 0.0, 0.5, -0.5, 0.25, 1.5, -1.5, 1 / 3, 2.5, 5.5, -7.0),
    *(inf, -inf, nan, 100.0, 1e5),
]

KEPT = {
    "pow 0.5": [-0.0, -inf],  # IEEE 754's power: inf of -inf, +0 of -0; torch takes the square root
    "pow -0.5": [-0.0, -inf],
    "pow 1.5": [-inf],  # the derivative of a value that is inf there, by the power above
    "abs": [nan],  # the gradient of torch is 0 where the value is NaN
    "sign": [nan],  # NaN, as in NumPy; 0 in torch
    "elu": [nan],  # NaN; torch has a slope where the value is NaN
    "hardswish": [nan],
    "selu": [nan],
    "mish": [inf],  # 1, the limit; NaN in torch
    # 1 / (1 + |a|)**2 without the cancellation of torch
    "softsign": [inf, -inf, 100.0, -100.0, 104.0, -104.0, 1e5, -1e5, 1e10, -1e10],
}
"""Special values at which we differ from torch."""

FUNCTIONS = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf exp exp2 floor log log10 log2 neg "
    "reciprocal round rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc relu"
).split()
ACTIVATIONS = "elu hardsigmoid hardswish logsigmoid mish relu6 selu silu softplus softsign".split()


def differences(ours: Callable[..., Any], theirs: Callable[..., Any], *columns: Any) -> list[str]:
    """Differences in values or gradients of two functions of rows of numbers."""
    mine = [Tensor(column, dtype="float32", requires_grad=True) for column in columns]
    peer = [torch.tensor(column, dtype=torch.float32, requires_grad=True) for column in columns]
    y, z = ours(*mine), theirs(*peer)
    z.sum().backward()
    gradients = zip(y.sum().gradient(*mine), [p.grad for p in peer], strict=True)
    found = []
    for what, (a, b) in zip(("value", "d/da", "d/db"), [(y, z.detach()), *gradients], strict=False):
        a, b = a.numpy(), b.numpy()
        apart = numpy.nonzero(~numpy.isclose(a, b, 1e-4, 1e-20, equal_nan=True))[0]
        found += [f"{what} at {[c[i] for c in columns]}: {a[i]}, torch {b[i]}" for i in apart]
    return found


def without(name: str) -> list[float]:
    """The special values at which a function is held to torch."""
    kept = [repr(x) for x in KEPT.get(name, [])]
    return [x for x in SPECIAL if repr(x) not in kept]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    found = differences(lambda x: getattr(x, name)(), getattr(torch, name), without(name))

    assert found == []


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    peer = getattr(torch.nn.functional, name)

    assert differences(lambda x: getattr(x, name)(), peer, without(name)) == []


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_powers_with_a_number(exponent: float) -> None:
    def power(x: Any) -> Any:
        return x**exponent

    assert differences(power, power, without(f"pow {exponent}")) == []


@pytest.mark.parametrize("base", [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, inf, -inf, nan])
def test_powers_of_a_number(base: float) -> None:
    def power(x: Any) -> Any:
        return base**x

    assert differences(power, power, SPECIAL) == []


def test_powers_of_tensors() -> None:
    pairs = [*itertools.product(SPECIAL, [*EXPONENTS, *SPECIAL])]
    bases, exponents = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]

    def power(x: Any, y: Any) -> Any:
        return x**y

    assert differences(power, power, bases, exponents) == []


def test_second_derivatives_of_powers_at_zero() -> None:
    for exponent, expected in ((2.5, 0.0), (1.5, inf), (0.5, -inf), (2, 2.0), (5.0, 0.0)):
        x = Tensor([0.0], requires_grad=True)
        (first,) = (x**exponent).sum().gradient(x)
        (second,) = first.sum().gradient(x)
        assert second.item() == expected, exponent


def test_what_is_nan_has_no_gradient_of_zero() -> None:
    x = Tensor([-1.0], requires_grad=True)

    for exponent in (0.25, 1.5, 1 / 3, Tensor([2.5])):
        assert math.isnan((x**exponent).sum().gradient(x)[0].item()), exponent


def test_sigmoid_is_differentiated_where_one_minus_it_is_lost() -> None:
    x = Tensor([50.0], requires_grad=True)

    slope = x.sigmoid().sum().gradient(x)[0].item()

    assert slope == pytest.approx(math.exp(-50.0), rel=1e-5)  # torch: s * (1 - s), which is 0


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_integers_to_negative_powers_are_truncated(dtype: str) -> None:
    pairs = [*itertools.product([-3, -2, -1, 0, 1, 2, 3], [-3, -2, -1, 0, 1, 2])]
    bases, exponents = [a for a, _ in pairs], [b for _, b in pairs]
    kind = getattr(torch, dtype)

    found = Tensor(bases, dtype=dtype) ** Tensor(exponents, dtype=dtype)

    expected = torch.tensor(bases, dtype=kind) ** torch.tensor(exponents, dtype=kind)
    assert found.tolist() == expected.tolist()
    assert (2 ** Tensor([-1, 3])).tolist() == [0, 8]
    with pytest.raises(ArgumentError, match="to the power -1"):
        Tensor([2]) ** -1


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", [(9, 11), (3, 5), (5, 20), (13, 4), (28, 2)])
def test_interpolate_keeps_uint8(size: tuple[int, int], align_corners: bool) -> None:
    image = numpy.random.default_rng(0).integers(0, 256, (2, 3, 7, 8)).astype(numpy.uint8)

    found = Tensor(image).interpolate(size, align_corners=align_corners)

    expected = torch.nn.functional.interpolate(
        torch.tensor(image), size, mode="bilinear", align_corners=align_corners
    )
    assert found.dtype.name == "uint8"
    assert (found.numpy() == expected.numpy()).all()  # torch's weights have 16 bits


# --- limits, distances and means of what floats do not hold


@pytest.mark.parametrize(("low", "high"), [(nan, None), (None, nan), (nan, 1.0)])
def test_clamp_to_a_limit_that_is_nan(low: float | None, high: float | None) -> None:
    x, limits = [0.5, 2.0], [[v, 0.0] if v is not None else None for v in (low, high)]
    tensors = [None if v is None else Tensor(v) for v in limits]
    peers = [None if v is None else torch.tensor(v) for v in limits]

    assert Tensor(x).clamp(low, high).isnan().all().item()
    found = Tensor(x).clamp(*tensors).numpy()
    numpy.testing.assert_array_equal(found, torch.tensor(x).clamp(*peers).numpy())


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_isclose_tells_integers_apart_that_are_one_float(dtype: str) -> None:
    a, b = Tensor([2**24 + 1, 7, 0], dtype=dtype), Tensor([2**24, 7, 2**31 - 1], dtype=dtype)

    assert a.isclose(b, rtol=0.0, atol=0.0).tolist() == [False, True, False]
    assert a.isclose(b, rtol=0.0, atol=1.0).tolist() == [True, True, False]
    assert b.isclose(a, rtol=0.0, atol=0.5).tolist() == [False, True, False]


def test_unsigned_integers_become_floats_before_they_are_subtracted_or_negated() -> None:
    x = Tensor([0, 255], dtype="uint8")

    assert x.lerp(Tensor([255, 0], dtype="uint8"), 0.5).tolist() == [127.5, 127.5]
    assert x.softmin().tolist() == Tensor([0.0, 255.0]).softmin().tolist()
    assert x.softsign().tolist() == Tensor([0.0, 255.0]).softsign().tolist()
    assert x.hardswish().tolist() == [0.0, 255.0]


@pytest.mark.parametrize("ends", [(0, 99), (-7, 7), (7, -30), (0, 2**40), (-(2**33), 5)], ids=str)
@pytest.mark.parametrize("steps", [2, 3, 24, 100])
def test_linspace_of_integers_is_exact(ends: tuple[int, int], steps: int) -> None:
    start, stop = ends
    places = [Fraction(start) + Fraction(stop - start, steps - 1) * i for i in range(steps)]

    found = Tensor.linspace(start, stop, steps, dtype="int64")

    assert found.tolist() == [math.trunc(place) for place in places]


def test_linspace_of_integers_refuses_an_infinite_end() -> None:
    with pytest.raises(ArgumentError, match="no integer"):
        Tensor.linspace(0, inf, 3, dtype="int32")


# --- found by the sweep of every function (`test_edge_sweep.py`)


def slope(function: Callable[[Tensor], Any], *numbers: float) -> list[float]:
    """The gradient of the sum of a function of a row."""
    x = Tensor(list(numbers), requires_grad=True)
    found: list[float] = function(x).sum().gradient(x)[0].tolist()
    return found


def test_slopes_do_not_overflow_or_cancel_before_values_do() -> None:
    huge = math.cosh(89.0)
    assert slope(Tensor.sinh, 89.0, -89.0) == pytest.approx([huge, huge], rel=1e-4)
    assert slope(Tensor.cosh, 89.0, 1e-10) == pytest.approx([huge, 1e-10], rel=1e-4)
    assert slope(Tensor.acosh, 1e20, 1e38) == pytest.approx([1e-20, 1e-38], rel=1e-4)
    assert slope(Tensor.softsign, 1e5, -1e10) == pytest.approx([9.9998e-11, 1e-20], rel=1e-4)
    assert slope(lambda x: x.norm(3), 1e-25, 2e-25) == [0.0, 0.0]
    assert slope(lambda x: x.atan2(Tensor([1e20])), 1e20) == pytest.approx([5e-21])


@pytest.mark.parametrize("size", [1e20, 1e38, 1.0, 1e-25, 1e-38])
def test_standard_deviations_neither_overflow_nor_underflow(size: float) -> None:
    row = [size, -size, 0.5 * size]
    peer = torch.tensor(row, dtype=torch.float64, requires_grad=True)
    peer.std().backward()  # type: ignore[no-untyped-call]
    assert peer.grad is not None

    with Context(FLUSH_SUBNORMALS=0):  # the smallest rows are subnormal
        assert Tensor(row).std().item() == pytest.approx(peer.std().item(), rel=1e-5)
        assert slope(lambda x: x.std(), *row) == pytest.approx(peer.grad.tolist(), rel=1e-4)


def test_quantiles_beside_infinities_are_infinite() -> None:
    assert Tensor([-inf, 1.0, 2.0]).quantile([0.25, 0.5, 0.75]).tolist() == [-inf, 1.0, 1.5]
    assert Tensor([inf, 1.0, 2.0]).quantile([0.25, 0.5, 0.75]).tolist() == [1.5, 2.0, inf]
    assert Tensor([-inf, -inf]).quantile(0.3).item() == -inf
    assert math.isnan(Tensor([-inf, inf]).quantile(0.5).item())
    assert slope(lambda x: x.quantile(0.25), -inf, 1.0, 3.0) == [0.5, 0.5, 0.0]


def test_a_nan_that_was_chosen_shows_in_gradients() -> None:
    for choose in (Tensor.max, Tensor.min):
        assert all(map(math.isnan, slope(choose, nan, 1.0, 2.0)))
    assert slope(lambda x: x.maximum(Tensor([1.0, nan])), nan, 1.0) == [1.0, 1.0]
    assert slope(lambda x: x.median(), 1.0, nan, 2.0) == [0.0, 1.0, 0.0]
    assert slope(lambda x: x.quantile(0.3), 1.0, nan, 2.0) == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(("size", "step"), [(0, 8), (0, 2), (0, 5), (3, 2)])
def test_windows_of_no_elements(size: int, step: int) -> None:
    rows = numpy.arange(10).reshape(2, 5)

    assert (
        Tensor(rows).unfold(1, size, step).shape == torch.tensor(rows).unfold(1, size, step).shape
    )


def test_lerp_ends_at_its_end() -> None:
    assert Tensor([1e20]).lerp(Tensor([1.0]), 1.0).item() == 1.0
    assert Tensor([1e20]).lerp(Tensor([1.0]), Tensor([1.0])).item() == 1.0
