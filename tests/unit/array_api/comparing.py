"""The same code run on two namespaces, this one and array-api-strict, and the results compared.

The defaults of both are 64 bits wide here, so that dtypes can be compared as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import array_api_strict as strict
import numpy

import tinycore.array_api as xp
from tinycore.dtype import DType
from tinycore.tensor import Tensor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says that this revision is not its latest
    strict.set_array_api_strict_flags(api_version=xp.__array_api_version__)

Case = Callable[[Any], Any]
"""A piece of code that any namespace runs, and what it finds: arrays, or plain values."""

DTYPES: Final = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64".split()
"""The dtypes of the standard that are here."""

ROUNDINGS = 8
"""Tolerance in multiples of the dtype's epsilon, relative to the float64 reference."""


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of either namespace."""
    return dtype.name if isinstance(dtype, DType) else str(dtype).rpartition(".")[2]


def to_numpy(x: Any) -> Any:
    """The elements of an array of either namespace."""
    return x.numpy() if isinstance(x, Tensor) else numpy.from_dlpack(x)


def is_array(x: Any) -> bool:
    return isinstance(x, Tensor) or type(x) is type(strict.asarray(1))


def assert_same(ours: Any, theirs: Any, what: str, slack: float = 1.0, sign: bool = True) -> None:
    """Equal structure, dtypes and shapes; integers equal, floats but for rounding.

    `slack` widens the tolerance; `sign` asks for equal signs of zeros.
    """
    if is_array(theirs):
        assert is_array(ours), f"{what}: {ours!r} is no array"
        assert dtype_name(ours.dtype) == dtype_name(theirs.dtype), what
        assert ours.shape == theirs.shape, what
        assert_close(to_numpy(ours), to_numpy(theirs), what, slack, sign)
    elif isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs), what
        assert getattr(ours, "_fields", None) == getattr(theirs, "_fields", None), what
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{what}[{number}]", slack, sign)
    elif isinstance(ours, DType):
        assert dtype_name(ours) == dtype_name(theirs), what
    else:
        assert type(ours) is type(theirs), what
        assert ours == theirs, what


def assert_close(ours: Any, theirs: Any, what: str, slack: float = 1.0, sign: bool = True) -> None:
    """Equal integers; floats off by no more than some roundings, infinities and NaN alike."""
    if theirs.dtype.kind != "f":
        numpy.testing.assert_array_equal(ours, theirs, what)
        return
    limits = numpy.finfo(theirs.dtype)
    tolerance = ROUNDINGS * slack * float(limits.eps)
    least = tolerance * float(numpy.max(numpy.abs(theirs), initial=0, where=numpy.isfinite(theirs)))
    absolute = least if slack > 1 else float(limits.smallest_normal)
    numpy.testing.assert_allclose(ours, theirs, tolerance, absolute, err_msg=what)
    if sign:
        zeros = (theirs == 0) & (ours == 0)
        numpy.testing.assert_array_equal(
            numpy.signbit(ours) & zeros, numpy.signbit(theirs) & zeros, f"{what}: sign of 0"
        )


def run_both(case: Case, what: str, slack: float = 1.0, sign: bool = True) -> None:
    """Run a piece of code on both namespaces; the results must be the same."""
    with warnings.catch_warnings(), numpy.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        theirs = case(strict)
    assert_same(case(xp), theirs, what, slack, sign)


def make(namespace: Any, data: Any, dtype: str) -> Any:
    """An array of numbers in a dtype."""
    return namespace.asarray(data, dtype=getattr(namespace, dtype))


def drawn(namespace: Any, *shape: int, dtype: str = "float64", seed: int = 0) -> Any:
    """An array of random numbers, the same in both namespaces: some equal, some negative."""
    numbers = numpy.random.default_rng([seed, *shape]).integers(-4, 5, shape)
    if dtype.startswith("float"):
        return make(namespace, (numbers / 2).tolist(), dtype)
    if dtype.startswith("uint"):
        numbers = numpy.abs(numbers)
    return make(namespace, (numbers > 0 if dtype == "bool" else numbers).tolist(), dtype)
