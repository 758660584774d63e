"""Creation: constants, ranges and memory.

Floor 5. `device` and `dtype` default to the default device and the default float or integer. What
fills memory (`full`, `zeros`, `ones`, `empty`) has memory of its own, so that it can be trained and
assigned to; with `buffer=False` it is a constant that takes none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from tinycore._deferred import NumpyScalar
from tinycore.dtype import DType, DTypeLike, ImageDType, Scalar, dtypes, from_numpy_dtype, to_dtype
from tinycore.errors import ArgumentError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import Ints, int_arguments, number_dtype, spread
from tinycore.tensor.core import canonical
from tinycore.tensor.methods.pixels import new_image
from tinycore.tensor.methods.scan import Scan
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.shape import DeviceLike, Shape
from tinycore.uop.size import Size, integer_of, is_size, same_number


def sizes_from(name: str, shape: tuple[object, ...]) -> Shape:
    """A shape given as one tuple or as separate sizes. Raises ShapeError for a negative size."""
    sizes = int_arguments(name, spread(shape))
    if any(n < 0 for n in sizes):
        raise ShapeError(f"{name}: sizes cannot be negative, got {sizes}")
    return sizes


def float_or(dtype: DTypeLike | None) -> DType:
    """The given dtype, else the default float."""
    return dtypes.default_float if dtype is None else to_dtype(dtype)


class Creation(Scan):
    """Constructors."""

    __slots__ = ()

    @classmethod
    def empty(
        cls,
        *shape: Ints,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Uninitialized memory; an image if `dtype` is an image type.

        >>> Tensor.empty(2, 3, dtype="int8").shape
        (2, 3)
        """
        sizes, place = sizes_from("empty", shape), canonical(device)
        if isinstance(dtype, ImageDType):
            node = new_image(sizes, dtype, place)
        else:
            node = graph.new_buffer(sizes, float_or(dtype), place)
        return cls._from_node(node)._marked(requires_grad)

    @classmethod
    def invalids(
        cls, *shape: Ints, device: DeviceLike | None = None, dtype: DTypeLike | None = None
    ) -> Self:
        """New uninitialized memory: `empty` by another name.

        >>> Tensor.invalids(2, 3).shape
        (2, 3)
        """
        return cls.empty(*shape, device=device, dtype=dtype)

    @classmethod
    def const(
        cls,
        value: Scalar | Sequence[Scalar],
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
    ) -> Self:
        """A constant of shape (), which takes no memory; of several numbers, a tensor of them.

        >>> Tensor.const(2.5).item(), Tensor.const(3).dtype, Tensor.const((1, 2)).tolist()
        (2.5, dtypes.int32, [1, 2])
        """
        if isinstance(value, Sequence):
            return cls(list(value), device=device, dtype=dtype)
        target = dtypes.from_py(value) if dtype is None else to_dtype(dtype)
        return cls._from_node(graph.scalar(target, value, canonical(device)))

    @classmethod
    def full(
        cls,
        shape: Ints,
        fill_value: Scalar,
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
        buffer: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """One number everywhere; its dtype follows the number.

        Raises ShapeError for a negative size, and for memory of 2**63 bytes or more.

        >>> Tensor.full((2, 2), 7).tolist(), Tensor.full((1,), 7.0).dtype
        ([[7, 7], [7, 7]], dtypes.float32)
        """
        if is_size(fill_value):
            kind = integer_of(fill_value) if dtype is None else to_dtype(dtype)
            sizes, place = sizes_from("full", (shape,)), canonical(device)
            node = graph.broadcast_to(graph.bound(fill_value, kind, place), sizes)
        else:
            if isinstance(fill_value, NumpyScalar):
                dtype = dtype or from_numpy_dtype(fill_value.dtype)
                fill_value = fill_value.item()
            target = number_dtype("full", fill_value, None if dtype is None else to_dtype(dtype))
            node = graph.full(sizes_from("full", (shape,)), target, fill_value, canonical(device))
        return cls._from_node(constant_in_memory(node) if buffer else node)._marked(requires_grad)

    @classmethod
    def zeros(
        cls,
        *shape: Ints,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
        buffer: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """0 everywhere.

        >>> Tensor.zeros(2, 3).tolist()
        [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
        >>> Tensor.zeros(2, dtype="int32").tolist()
        [0, 0]
        """
        return cls.full(
            sizes_from("zeros", shape), 0.0, float_or(dtype), device, buffer, requires_grad
        )

    @classmethod
    def ones(
        cls,
        *shape: Ints,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
        buffer: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """1 everywhere.

        >>> Tensor.ones(2, 3).tolist()
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
        """
        return cls.full(
            sizes_from("ones", shape), 1.0, float_or(dtype), device, buffer, requires_grad
        )

    @classmethod
    def arange(
        cls,
        start: Scalar,
        stop: Scalar | None = None,
        step: Scalar = 1,
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """start, start + step, ... before stop; `arange(n)` counts 0 to n - 1.

        Integers, unless a number is a float: int64 beyond the default integer. Raises ArgumentError
        when step is 0, a number is not finite, or, without `dtype`, one does not fit int64.

        >>> Tensor.arange(4).tolist(), Tensor.arange(5, 0, -2).tolist()
        ([0, 1, 2, 3], [5, 3, 1])
        >>> Tensor.arange(0, 1, 0.25).tolist()
        [0.0, 0.25, 0.5, 0.75]
        """
        if stop is None:
            start, stop = 0, start
        if any(isinstance(n, Size) for n in (start, stop, step)):
            kind = None if dtype is None else to_dtype(dtype)
            node = counted_at_launch(start, stop, step, kind, canonical(device))
            return cls._from_node(node)._marked(requires_grad)
        for number in (start, stop, step):
            if not math.isfinite(number):
                raise ArgumentError(f"arange: {number} from {start} to {stop} by {step} has no end")
        if step == 0:
            raise ArgumentError(f"arange: the step from {start} to {stop} must not be 0")
        fractional = any(isinstance(n, float) for n in (start, stop, step))
        size = max(0, math.ceil((stop - start) / step))
        asked = None if dtype is None else to_dtype(dtype)
        ends = [number_dtype("arange", n, asked) for n in (start, start + max(0, size - 1) * step)]
        target = dtypes.default_float if fractional and asked is None else max(ends)
        return cls._from_node(counted(start, step, size, target, canonical(device)))._marked(
            requires_grad
        )

    @classmethod
    def linspace(
        cls,
        start: Scalar,
        stop: Scalar,
        steps: int,
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """`steps` numbers evenly from start to stop, both included; of integers, rounded toward 0.

        Raises ArgumentError for steps < 0.

        >>> Tensor.linspace(0, 1, 5).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
        """
        if steps < 0:
            raise ArgumentError(f"linspace: the number of steps must not be negative, got {steps}")
        target, place = float_or(dtype), canonical(device)
        if steps == 1:
            return cls._from_node(graph.full((1,), target, start, place))._marked(requires_grad)
        if dtypes.is_int(target):
            for end in (start, stop):
                number_dtype("linspace", end, target)
            row = cls._from_node(evenly(int(start), int(stop), max(2, steps), target, place))
            return row._between(0, 0, steps)._marked(requires_grad)
        wide = dtypes.float64 if target is dtypes.float64 else dtypes.float32
        share = cls._from_node(graph.arange(steps, dtypes.int32, place)).cast(wide) / max(
            1, steps - 1
        )
        ramp = (1 - share) * start + share * stop
        return ramp.cast(target)._marked(requires_grad)

    @classmethod
    def eye(
        cls,
        n: int,
        m: int | None = None,
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """n rows and m (or n) columns, 1 on the diagonal, 0 elsewhere. Raises ShapeError below 0.

        >>> Tensor.eye(2).tolist(), Tensor.eye(2, 3, dtype="int32").tolist()
        ([[1.0, 0.0], [0.0, 1.0]], [[1, 0, 0], [0, 1, 0]])
        """
        rows, columns = sizes_from("eye", (n, n if m is None else m))
        place = canonical(device)
        down = cls._from_node(graph.arange(rows, dtypes.int32, place)).unsqueeze(1)
        return (
            down.eq(cls._from_node(graph.arange(columns, dtypes.int32, place)))
            .cast(float_or(dtype))
            ._marked(requires_grad)
        )

    # --- like another tensor

    def full_like(
        self,
        fill_value: Scalar,
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
        buffer: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """One number in the shape, dtype and device of this tensor.

        >>> x = Tensor([1, 2])
        >>> x.full_like(7).tolist(), x.full_like(7, dtype="float32").tolist()
        ([7, 7], [7.0, 7.0])
        """
        target = self.dtype if dtype is None else to_dtype(dtype)
        if buffer and device is None and self.numel():  # in the same parts, on several devices
            value = self.full(self.shape, fill_value, target, self.device, buffer=False)
            memory = graph.new_memory_like(self.uop, target)
            node = graph.store_value(memory, value.uop)
            return self._from_node(node)._marked(requires_grad)
        return self.full(
            self.shape, fill_value, target, device or self.device, buffer, requires_grad
        )

    def zeros_like(
        self,
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
        buffer: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """0 in the shape, dtype and device of this tensor.

        >>> Tensor([[1, 2]]).zeros_like().tolist()
        [[0, 0]]
        """
        return self.full_like(0, dtype, device, buffer, requires_grad)

    def ones_like(
        self,
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
        buffer: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """1 in the shape, dtype and device of this tensor.

        >>> Tensor([[1, 2]]).ones_like().tolist()
        [[1, 1]]
        """
        return self.full_like(1, dtype, device, buffer, requires_grad)

    def empty_like(
        self,
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Uninitialized memory in the shape, dtype and device of this tensor.

        >>> x = Tensor([[1, 2]]).empty_like()
        >>> x.shape, x.dtype
        ((1, 2), dtypes.int32)
        """
        target = self.dtype if dtype is None else to_dtype(dtype)
        if device is None:
            return self._from_node(graph.new_memory_like(self.uop, target))._marked(requires_grad)
        return self.empty(self.shape, device=device, dtype=target, requires_grad=requires_grad)

    def _marked(self, requires_grad: bool | None) -> Self:
        """The tensor itself, after saying whether it wants a gradient."""
        return self if requires_grad is None else self.requires_grad_(requires_grad)


def constant_in_memory(node: UOp) -> UOp:
    """A constant in new memory."""
    memory = graph.new_buffer(node.shape, node.dtype, node.device)
    return graph.store_value(memory, node) if 0 not in node.shape else node


def counted(start: Scalar, step: Scalar, size: int, dtype: DType, device: DeviceLike) -> UOp:
    """start + i * step for i below size, computed in integers or at least float32."""
    whole = not any(isinstance(n, float) and not n.is_integer() for n in (start, step))
    small = max(abs(start), abs(start + size * step)) < 1 << 31
    if whole and (small or dtypes.is_int(dtype)):
        exact = dtypes.int32 if small else dtype
    else:
        exact = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    numbers = graph.arange(size, exact, device)
    if step != 1:
        numbers = numbers.alu(Op.MUL, graph.full_like(numbers, step))
    if start != 0:
        numbers = numbers.alu(Op.ADD, graph.full_like(numbers, start))
    return numbers.cast(dtype)


def evenly(start: int, stop: int, steps: int, dtype: DType, device: DeviceLike) -> UOp:
    """Integers evenly from start to stop, rounded toward 0: all steps >= 2 of them, exactly.

    With stop - start == q * n + r for n == steps - 1, number i is start + i*q + floor(i*r / n).
    """
    n = steps - 1
    q, r = divmod(stop - start, n)
    small = max(abs(start), abs(stop), n * n) < 1 << 30
    numbers = graph.arange(steps, dtypes.int32 if small else dtypes.int64, device)

    def number(value: int) -> UOp:
        return graph.full_like(numbers, value)

    rest = numbers.alu(Op.MUL, number(r))
    down = numbers.alu(Op.MUL, number(q)).alu(Op.ADD, number(start))
    down = down.alu(Op.ADD, rest.alu(Op.FLOORDIV, number(n)))
    if min(start, stop) < 0 and r:
        broken = rest.alu(Op.FLOORMOD, number(n)).alu(Op.CMPNE, number(0))
        up = down.alu(Op.CMPLT, number(0)).alu(Op.AND, broken)
        down = up.alu(Op.WHERE, down.alu(Op.ADD, number(1)), down)
    return down.cast(dtype)


def counted_at_launch(
    start: Any, stop: Any, step: Any, dtype: DType | None, device: DeviceLike
) -> UOp:
    """start, start + step, ... before stop, of which some is a Size.

    Raises ArgumentTypeError for a float, ArgumentError for a step of 0.
    """
    start, stop, step = int_arguments("arange", (start, stop, step), "numbers are ints")
    if same_number(step, 0):
        raise ArgumentError(f"arange: the step from {start} to {stop} must not be 0")
    last = step - 1 if step > 0 else step + 1
    size = (stop - start + last) // step if step > 0 else (start - stop - last) // -step
    size = max(size, 0)  # in this order a Size stays one where it is 0 now
    wide = integer_of(start, stop)  # and so all between, however the products of steps wrap
    numbers = graph.arange(size, wide, device)
    for op, number, neutral in ((Op.MUL, step, 1), (Op.ADD, start, 0)):
        if number != neutral:
            numbers = numbers.alu(
                op, graph.broadcast_to(graph.bound(number, wide, device), numbers.shape)
            )
    return numbers.cast(dtype or wide)
