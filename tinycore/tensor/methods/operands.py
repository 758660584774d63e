"""Operands: broadcasting, type promotion and device agreement.

Floor 5. Operands are broadcast together and promoted to their common dtype; a Python number takes
the tensor's dtype where it can hold it (a float beside integers makes them the default float).
Shapes and devices are checked at the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Protocol, Self, TypeVar, cast

from tinycore._deferred import NumpyArray, NumpyScalar
from tinycore.dtype import DType, Scalar, dtypes, least_upper_dtype, least_upper_float
from tinycore.errors import DTypeError
from tinycore.tensor import graph
from tinycore.tensor.checks import NUMBER_TYPES, broadcast_shapes, number_dtype, same_device
from tinycore.tensor.methods.joining import Joining
from tinycore.tensor.runtime import HostArray
from tinycore.tensor.signatures import renamed
from tinycore.uop.node import UOp
from tinycore.uop.op import BOOL_ARITHMETIC, Op
from tinycore.uop.size import Size, greatest, integer_of, smallest


class Operands(Joining):
    """Operands: their broadcasting and promotion."""

    __slots__ = ()

    def ufix(self, x: Self | Scalar | UOp | Size | HostArray) -> Self:
        """`x` as a tensor: a number becomes a constant of the dtype that fits this one.

        >>> Tensor([1, 2]).ufix(3).dtype, Tensor([1, 2]).ufix(3.5).dtype
        (dtypes.int32, dtypes.float32)
        """
        if isinstance(x, Operands):
            return x
        if isinstance(x, NumpyScalar):
            x = x.item()
        if isinstance(x, UOp):
            return self._from_node(x)
        if isinstance(x, NumpyArray):
            return type(self)(x, device=self.device)
        if isinstance(x, Size):
            return self._from_node(graph.bound(x, scalar_dtype(x, self.dtype), self.device))
        if not isinstance(x, (bool, int, float)):
            raise DTypeError(
                f"an operand of type {type(x).__name__} is neither a Tensor nor a number"
            )
        dtype = number_dtype("operand", x, scalar_dtype(x, self.dtype))
        return self._from_node(graph.scalar(dtype, x, self.device))

    def _broadcasted(
        self, name: str, *others: Self | Scalar, promote: bool = True
    ) -> tuple[Self, ...]:
        """This tensor and others on one device, in one shape and (unless disabled) one dtype.

        Raises ShapeError and DeviceError naming the operation and its operands.
        """
        return tuple(map(self._from_node, self._nodes(name, others, promote)))

    def _nodes(self, name: str, others: Iterable[Self | Scalar], promote: bool = True) -> list[UOp]:
        """The nodes of this tensor and others after `_broadcasted`."""
        nodes = on_one_device(name, [self.uop, *[self._node(x) for x in others]])
        shape = broadcast_shapes(name, *[node.shape for node in nodes])
        if promote:
            dtype = least_upper_dtype(*[node.dtype for node in nodes])
            nodes = [node.cast(dtype) for node in nodes]
        return [graph.broadcast_to(node, shape) for node in nodes]

    def _node(self, x: Self | Scalar) -> UOp:
        """The node of `ufix(x)`."""
        if type(x) not in NUMBER_TYPES:
            return self.ufix(x).uop
        dtype = number_dtype("operand", cast(Scalar, x), scalar_dtype(cast(Scalar, x), self.dtype))
        return graph.scalar(dtype, cast(Scalar, x), self.device)

    def _pair(self, name: str, other: Self | Scalar) -> Sequence[UOp]:
        """`_nodes` of two operands; at once for a number of this dtype, or a tensor of this dtype
        on this device.
        """
        node = self.uop
        if type(other) in NUMBER_TYPES:
            number = cast(Scalar, other)
            dtype = scalar_dtype(number, node.dtype)
            if dtype is node.dtype and number_dtype("operand", number, dtype) is dtype:
                return node, graph.full(node.shape, dtype, number, node.device)
        elif isinstance(other, Operands):
            second = other.uop
            if node.dtype is second.dtype and node.device == second.device:
                least_upper_dtype(node.dtype)  # raises for a dtype that takes no part in arithmetic
                shape = node.shape
                if shape == second.shape:
                    return node, second
                shape = broadcast_shapes(name, shape, second.shape)
                return graph.broadcast_to(node, shape), graph.broadcast_to(second, shape)
        return self._nodes(name, (other,))

    def _is_like(self, other: Self, promote: bool = False) -> bool:
        """True if another tensor has this shape, on this device, and this dtype if not promoted."""
        a, b = self.uop, other.uop
        if a.dtype is not b.dtype and not promote:
            return False
        return a is b or (a.shape == b.shape and a.device == b.device)

    def _made_by(self, op: Op, first: UOp, *others: UOp) -> Self:
        """The tensor that an op makes of nodes of one shape."""
        node = first.alu(op, *others)
        node._shape, node._device = first.shape, first.device  # which would be found by a walk
        return self._from_node(node)

    def _binary(self, name: str, op: Op, other: Self | Scalar, reverse: bool = False) -> Self:
        """The op between broadcast, promoted operands; between bools its logical meaning."""
        left, right = self._pair(name, other)
        if left.dtype is dtypes.bool:
            op = BOOL_ARITHMETIC.get(op, op)
        return self._made_by(op, right, left) if reverse else self._made_by(op, left, right)

    def _as_float(self) -> Self:
        """The tensor itself if it is a float, else in the default float."""
        return self.cast(least_upper_float(self.dtype))

    def _in_floats(self, name: str, x: Self | Scalar) -> tuple[Self, Self]:
        """`_broadcasted` of two operands as floats; an integer number does not wrap before."""
        is_number = isinstance(x, (int, Size, NumpyScalar))
        left, right = (self._as_float() if is_number else self)._broadcasted(name, x)
        return left._as_float(), right._as_float()

    def _comparable(self, x: Self | Scalar | Size | NumpyScalar) -> Self | Scalar:
        """`x`, but what would wrap in this tensor's dtype otherwise: an infinity for an integer
        beyond all of this tensor's, and a tensor for a Size that may be.
        """
        if isinstance(x, NumpyScalar):
            x = x.item()
        if not isinstance(x, (int, Size)) or dtypes.is_float(self.dtype):
            return cast(Scalar, x)
        dtype = scalar_dtype(x, self.dtype)
        least, most = smallest(cast(int, x)), greatest(cast(int, x))
        if dtypes.min(dtype) <= least and most <= dtypes.max(dtype):
            return cast(Scalar, x)
        if isinstance(x, Size):
            return self._from_node(graph.bound(x, integer_of(x), self.device))
        return math.inf if x > 0 else -math.inf

    def _choices(self, x: Self | Scalar, y: Self | Scalar) -> tuple[Self, Self]:
        """The two sides of `where` in their common dtype; numbers follow the tensor they meet."""
        if isinstance(x, Operands):
            yes, no = x, x.ufix(y)
        elif isinstance(y, Operands):
            yes, no = y.ufix(x), y
        else:
            yes, no = self.ufix(x), self.ufix(y)
        dtype = least_upper_dtype(yes.dtype, no.dtype)
        return yes.cast(dtype), no.cast(dtype)


def scalar_dtype(value: Scalar | Size, beside: DType) -> DType:
    """The dtype of a number that meets a tensor: the tensor's, unless it lacks the kind."""
    if dtypes.is_float(beside) or (not isinstance(value, float) and dtypes.is_int(beside)):
        return beside
    if isinstance(value, bool) and beside is dtypes.bool:
        return beside
    return integer_of(value) if isinstance(value, Size) else dtypes.from_py(value)


OPERANDS = (Operands, bool, int, float, NumpyScalar, UOp, Size)
"""Types that may meet a tensor in an operation."""

COMPARED = (*OPERANDS, complex, NumpyArray)
"""Types that == and != take, or refuse by an error; a tensor is unequal to any other."""


AnyTensor = TypeVar("AnyTensor", bound=Operands)
Other_contra = TypeVar("Other_contra", contravariant=True)


class Binary(Protocol[AnyTensor, Other_contra]):
    """A method of two operands that can exchange them."""

    def __call__(self, x: AnyTensor, other: Other_contra, /, reverse: bool = False) -> AnyTensor:
        """The operation, with the operands exchanged where `reverse`."""


def operators(
    method: Binary[AnyTensor, Other_contra],
) -> tuple[
    Callable[[AnyTensor, Other_contra], AnyTensor], Callable[[AnyTensor, Other_contra], AnyTensor]
]:
    """A method as the operator between its operands, and as the one of its right operand."""
    called = renamed(method)

    @wraps(method)
    def swapped(x: AnyTensor, other: Other_contra) -> AnyTensor:
        return called(x, other, True)

    return called, swapped


def no_bools(name: str, dtype: DType) -> None:
    """Raises DTypeError for bools, of which neither difference nor remainder is a bool."""
    if dtype is dtypes.bool:
        raise DTypeError(f"{name}: not defined between bools; cast one of them, or use ^, &, |")


def on_one_device(name: str, nodes: list[UOp]) -> list[UOp]:
    """Constants follow the operands that are none; DeviceError when two of those disagree."""
    if len({node.device for node in nodes}) > 1:
        anchored = [node.device for node in nodes if not graph.is_constant(node)]
        if anchored:
            nodes = [graph.on_device(node, anchored[0]) for node in nodes]
        same_device(name, [node.device for node in nodes])
    return nodes
