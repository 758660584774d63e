"""Small kernels by hand, and a bench that runs them on a device without anything above it.

For tests of renderers, compilers and lowering: what a kernel computes is compared with NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy
from numpy.typing import NDArray

from tinycore.device.backend import Backend
from tinycore.device.protocols import DeviceRuntime, Toolchain
from tinycore.dtype import DType, dtypes
from tinycore.engine.compile import as_generated, info_of
from tinycore.lower.pipeline import lower
from tinycore.render.base import LinearKernel, Renderer
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op

__all__ = [
    "Array",
    "Bench",
    "bench",
    "element",
    "elementwise",
    "load",
    "product",
    "store",
    "ulps",
]

Array: TypeAlias = NDArray[Any]


def element(slot: int, dtype: DType, size: int, index: UOp, gate: UOp | None = None) -> UOp:
    """The INDEX of an element of the buffer in `slot`, which has `size` of them."""
    pointer = UOp(Op.DEFINE_GLOBAL, dtype.ptr(size), (), slot)
    gates = () if gate is None else (gate,)
    return UOp(Op.INDEX, pointer.dtype, (pointer, index, *gates))


def load(place: UOp, dtype: DType, *alternative: UOp) -> UOp:
    """The value at an INDEX, of as many lanes as `dtype` has."""
    return UOp(Op.LOAD, dtype, (place, *alternative))


def store(place: UOp, value: UOp) -> UOp:
    """A value written at an INDEX."""
    return UOp(Op.STORE, dtypes.void, (place, value))


def elementwise(
    function: Callable[..., Sequence[UOp]],
    inputs: Sequence[DType],
    size: int,
    lanes: int = 1,
    kind: AxisKind = AxisKind.LOOP,
) -> UOp:
    """A kernel that stores what `function` makes of one element of each input, `lanes` at a time.

    Outputs come first: slot i is the i-th value of the function, then follow the inputs.
    """
    counter = UOp.range(size // lanes, 0, kind)
    index = counter * lanes
    probe = function(*(UOp.const(d.vec(lanes), 1) for d in inputs))
    places = [element(len(probe) + i, d, size, index) for i, d in enumerate(inputs)]
    values = function(*(load(p, d.vec(lanes)) for p, d in zip(places, inputs, strict=True)))
    stores = tuple(
        store(element(slot, value.dtype.scalar(), size, index), value)
        for slot, value in enumerate(values)
    )
    body = stores[0] if len(stores) == 1 else UOp(Op.GROUP, dtypes.void, stores)
    return UOp.sink(UOp(Op.END, dtypes.void, (body, counter)))


def product(rows: int, inner: int, columns: int, dtype: DType) -> UOp:
    """The kernel of a product of matrices; slot 0 is the result, then the left and the right."""
    i, j = UOp.range(rows, 0), UOp.range(columns, 1)
    k = UOp.range(inner, 2, AxisKind.REDUCE)
    left = load(element(1, dtype, rows * inner, i * inner + k), dtype)
    right = load(element(2, dtype, inner * columns, k * columns + j), dtype)
    total = UOp(Op.REDUCE, dtype, (left * right, k), Op.ADD)
    change = store(element(0, dtype, rows * columns, i * columns + j), total)
    return UOp.sink(UOp(Op.END, dtypes.void, (change, i, j)))


def product_of_types(
    rows: int, inner: int, columns: int, a: DType, b: DType, out: DType, is_turned: bool = False
) -> UOp:
    """The same of operands that are converted to the type of the sum.

    With `is_turned` the second operand lies in memory column by column.
    """
    i, j = UOp.range(rows, 0), UOp.range(columns, 1)
    k = UOp.range(inner, 2, AxisKind.REDUCE)
    left = load(element(1, a, rows * inner, i * inner + k), a)
    place = j * inner + k if is_turned else k * columns + j
    right = load(element(2, b, inner * columns, place), b)
    factors = [x if x.dtype is out else x.cast(out) for x in (left, right)]
    total = UOp(Op.REDUCE, out, (factors[0] * factors[1], k), Op.ADD)
    change = store(element(0, out, rows * columns, i * columns + j), total)
    return UOp.sink(UOp(Op.END, dtypes.void, (change, i, j)))


@dataclass(frozen=True)
class Bench:
    """One device and one of its toolchains."""

    runtime: DeviceRuntime
    toolchain: Toolchain[Renderer]

    def lower(self, kernel: UOp, name: str = "kernel") -> LinearKernel:
        """The linear form of a kernel, its loops left as they are."""
        return lower(kernel, self.toolchain.renderer, name, plan=())

    def run(self, kernel: UOp, *arrays: Array, values: Sequence[int] = ()) -> list[Array]:
        """Content of the buffers after a launch that began with `arrays` in them, by slot."""
        linear = self.lower(kernel)
        binary = self.toolchain.compiler.compile(self.toolchain.renderer.render(linear))
        program = self.runtime.load(binary, as_generated(info_of(linear, len(arrays))))
        allocator = self.runtime.allocator
        handles = [allocator.alloc(array.nbytes) for array in arrays]
        for handle, array in zip(handles, arrays, strict=True):
            allocator.write(handle, numpy.ascontiguousarray(array).data.cast("B"))
        program(handles, values)
        self.runtime.synchronize()
        results = [numpy.empty_like(array) for array in arrays]
        for result, handle in zip(results, handles, strict=True):
            allocator.read(result.data.cast("B"), handle)
            allocator.free(handle)
        return results


def bench(backend: Backend, renderer: str, arch: str = "") -> Bench:
    """A device and a compiler to try kernels of a renderer on. Raises what opening and finding a
    compiler raise.
    """
    return Bench(backend.open(0, ""), backend.renderers[renderer](arch))


def ulps(found: Array, exact: Array) -> Array:
    """Distance of results from the exact values, in units of the last place of their type.

    0 where both are NaN or the same infinity, infinite where only one is. `exact` is of a longer
    type.
    """
    info = numpy.finfo(found.dtype)
    with numpy.errstate(all="ignore"):
        rounded = exact.astype(found.dtype)
        exponent = numpy.frexp(exact)[1] - 1
        last = numpy.maximum(exponent, info.minexp) - info.nmant
        distance = numpy.abs(found.astype(exact.dtype) - exact) * numpy.exp2(
            -last.astype(exact.dtype)
        )
        same = (found == rounded) | (numpy.isnan(found) & numpy.isnan(rounded))
        finite = numpy.isfinite(found) & numpy.isfinite(rounded)
        return numpy.where(finite, distance, numpy.where(same, 0.0, numpy.inf)).astype(float)
