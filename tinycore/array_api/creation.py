"""Arrays from sizes, numbers and other objects.

Floor 6. `device` and `dtype` default to the default device, float or integer; for what is made
like another array, to that array's.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy

from tinycore.array_api._promotion import array
from tinycore.device import Device
from tinycore.dtype import DType, Scalar, dtypes, from_numpy_dtype
from tinycore.errors import ArgumentError, ArgumentTypeError
from tinycore.tensor import Tensor
from tinycore.tensor.methods.data import SupportsArray
from tinycore.uop.shape import DeviceLike, Shape

__all__ = [
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like",
    "linspace", "meshgrid", "ones", "ones_like", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip

ARRAY_INPUTS: Final[tuple[type, ...]] = (bool, int, float, complex, list, tuple, numpy.generic)
"""Types that are read number by number."""


def arange(
    start: Scalar,
    /,
    stop: Scalar | None = None,
    step: Scalar = 1,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
) -> Tensor:
    """start, start + step, ... before stop; `arange(n)` counts 0 to n - 1.

    Integers, unless a number is a float. Raises ArgumentError when step is 0.
    """
    return Tensor.arange(start, stop, step, device=device, dtype=dtype)


def asarray(
    obj: Any,
    /,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    copy: bool | None = None,
) -> Tensor:
    """An array of an array, a number, a nested list of numbers, or a buffer such as NumPy's.

    `copy=True` gives it memory of its own. Raises ArgumentError when `copy=False` and memory
    cannot be shared, DTypeError for what no dtype can hold, complex numbers included.
    """
    if isinstance(obj, Tensor):
        result = obj.to(device).cast(obj.dtype if dtype is None else dtype)
        if copy is False and result is not obj:
            raise ArgumentError(f"asarray: {obj!r} must be copied, which copy=False forbids")
        return result.clone() if copy else result
    if isinstance(obj, ARRAY_INPUTS):
        if copy is False:
            raise ArgumentError(f"asarray: {obj!r} must be copied, which copy=False forbids")
        numbers: Any = obj
        return Tensor(numbers, device=device, dtype=dtype)
    lender = exporting(obj)
    place = Device.DEFAULT if device is None and isinstance(lender, numpy.ndarray) else device
    shared = Tensor.from_dlpack(lender, device=place, copy=copy)
    if dtype in (None, shared.dtype):
        return shared
    if copy is False:
        raise ArgumentError(f"asarray: {shared.dtype!r} to {dtype!r} is a copy, but copy=False")
    return shared.cast(dtype).realize()  # now, as the memory is not ours


def exporting(obj: Any) -> Any:
    """`obj` if it exports DLPack, else a NumPy array over its memory.

    Raises ArgumentTypeError for what has none, DTypeError for elements that no dtype can hold.
    """
    if hasattr(obj, "__dlpack__") and not isinstance(obj, numpy.ndarray):
        return obj
    try:
        array = numpy.asarray(obj if isinstance(obj, SupportsArray) else memoryview(obj))
    except TypeError:
        raise ArgumentTypeError(
            f"asarray: cannot hold an object of type {type(obj).__name__}. Give an array, a "
            "number, a nested list of numbers, or a buffer."
        ) from None
    from_numpy_dtype(array.dtype)
    return array


def empty(
    shape: int | Shape, *, dtype: DType | None = None, device: DeviceLike | None = None
) -> Tensor:
    """Memory filled with nothing in particular."""
    return Tensor.empty(shape, device=device, dtype=dtype)


def empty_like(
    x: Tensor, /, *, dtype: DType | None = None, device: DeviceLike | None = None
) -> Tensor:
    """Memory in the shape of an array, filled with nothing in particular."""
    return array("empty_like", x).empty_like(dtype, device)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
) -> Tensor:
    """A matrix of 1 on the k-th diagonal, above the main one for k > 0, and 0 elsewhere."""
    shape = (n_rows, n_rows if n_cols is None else n_cols)
    target = dtypes.default_float if dtype is None else dtype
    ones = Tensor.full(shape, 1, dtype=target, device=device, buffer=False)
    return ones.triu(k).tril(k)


def from_dlpack(x: Any, /, *, device: DeviceLike | None = None, copy: bool | None = None) -> Tensor:
    """An array of another library's array that has `__dlpack__`.

    Raises BufferError when `copy=False` and memory cannot be shared.
    """
    return Tensor.from_dlpack(x, device=device, copy=copy)


def full(
    shape: int | Shape,
    fill_value: Scalar,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
) -> Tensor:
    """One number everywhere; its dtype follows the number. Raises DTypeError for a complex one."""
    return Tensor.full(shape, fill_value, dtype=dtype, device=device)


def full_like(
    x: Tensor,
    /,
    fill_value: Scalar,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
) -> Tensor:
    """One number in the shape of an array."""
    return array("full_like", x).full_like(fill_value, dtype, device)


def linspace(
    start: Scalar,
    stop: Scalar,
    /,
    num: int,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` numbers evenly from start to stop, which is included if `endpoint` says so.

    Raises ArgumentError for num < 0.
    """
    if endpoint or num < 1:
        return Tensor.linspace(start, stop, num, device=device, dtype=dtype)
    return Tensor.linspace(start, stop, num + 1, device=device, dtype=dtype)[:num]


def meshgrid(*arrays: Tensor, indexing: Literal["xy", "ij"] = "xy") -> tuple[Tensor, ...]:
    """Coordinate grids of arrays with one axis; "xy" exchanges the first two axes.

    Raises ArgumentError for another indexing.
    """
    if not arrays:
        return ()
    first, *rest = [array("meshgrid", x) for x in arrays]
    return first.meshgrid(*rest, indexing=indexing)


def ones(
    shape: int | Shape, *, dtype: DType | None = None, device: DeviceLike | None = None
) -> Tensor:
    """1 everywhere."""
    return Tensor.ones(shape, device=device, dtype=dtype)


def ones_like(
    x: Tensor, /, *, dtype: DType | None = None, device: DeviceLike | None = None
) -> Tensor:
    """1 in the shape of an array."""
    return array("ones_like", x).ones_like(dtype, device)


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The last two axes with zeros above the k-th diagonal. Raises ShapeError below two axes."""
    return array("tril", x).tril(k)


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """The last two axes with zeros below the k-th diagonal. Raises ShapeError below two axes."""
    return array("triu", x).triu(k)


def zeros(
    shape: int | Shape, *, dtype: DType | None = None, device: DeviceLike | None = None
) -> Tensor:
    """0 everywhere."""
    return Tensor.zeros(shape, device=device, dtype=dtype)


def zeros_like(
    x: Tensor, /, *, dtype: DType | None = None, device: DeviceLike | None = None
) -> Tensor:
    """0 in the shape of an array."""
    return array("zeros_like", x).zeros_like(dtype, device)
