"""In-place operators and methods: `x += 1`, `x.mul_(2)`, `x.zero_()`.

Floor 5. Each computes what its namesake without the mark does and assigns it, so that every tensor
that is a view of this one shows it. The result keeps this tensor's shape and dtype.
See docs/aliasing.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final, Literal, Self, TypeVar

from tinycore.dtype import Scalar
from tinycore.errors import DTypeError, ShapeError
from tinycore.tensor.storage.realize import Realization

KIND_RANKS: Final = {"bool": 0, "uint": 1, "int": 1, "float": 2}
"""Kinds of dtypes by rank: numbers are written into tensors of their kind, and of those above."""


AnyTensor = TypeVar("AnyTensor", bound="InPlace")
Other = TypeVar("Other")


def in_place(
    method: Callable[[AnyTensor, Other], AnyTensor],
) -> Callable[[AnyTensor, Other], AnyTensor]:
    """A method of two operands, or what overrides it, as the operator that writes its result into
    the first.
    """
    name = method.__name__

    @wraps(method)
    def call(x: AnyTensor, other: Other) -> AnyTensor:
        return x._written(f"{name} in place", getattr(x, name)(other))

    return call


class InPlace(Realization):
    """In-place methods: each writes the result of an operation."""

    __slots__ = ()

    def _written(self, name: str, result: Self) -> Self:
        """Assign the result of an operation. Raises ShapeError or DTypeError if it does not fit."""
        if result.shape != self.shape:
            raise ShapeError(
                f"{name}: the result has shape {result.shape}, and is written into shape "
                f"{self.shape}. Use the operation that makes a new tensor, as in x = x + y"
            )
        if KIND_RANKS[result.dtype.kind] > KIND_RANKS[self.dtype.kind]:
            raise DTypeError(
                f"{name}: the result is {result.dtype!r}, and is written into {self.dtype!r}. Cast "
                "it first, or use the operation that makes a new tensor, as in x = x + y"
            )
        return self.assign(result.cast(self.dtype))

    # --- operators

    __ifloordiv__ = in_place(Realization.idiv)
    __imod__ = in_place(Realization.mod)
    __imatmul__ = in_place(Realization.matmul)
    __iand__ = in_place(Realization.bitwise_and)
    __ior__ = in_place(Realization.bitwise_or)
    __ixor__ = in_place(Realization.bitwise_xor)
    __ilshift__ = in_place(Realization.lshift)
    __irshift__ = in_place(Realization.rshift)

    # --- methods with an operand, named as in torch

    def add_(self, x: Self | Scalar, *, alpha: Scalar = 1) -> Self:
        """Add `alpha` times `x` in place; returns itself.

        Raises ShapeError or DTypeError where the result does not fit, as all these methods do.

        >>> x = Tensor([1.0, 2.0])
        >>> row = x[1:]
        >>> x.add_(10).sub_(Tensor([0.5, 0.5]), alpha=2).tolist(), row.tolist()
        ([10.0, 11.0], [11.0])
        """
        return self._written("add in place", self.add(x if alpha == 1 else self.ufix(x).mul(alpha)))

    def sub_(self, x: Self | Scalar, *, alpha: Scalar = 1) -> Self:
        """Subtract `alpha` times `x` in place; returns itself."""
        return self._written("sub in place", self.sub(x if alpha == 1 else self.ufix(x).mul(alpha)))

    def mul_(self, x: Self | Scalar) -> Self:
        """Multiply in place; returns itself.

        >>> Tensor([1.0, 2.0]).mul_(3).div_(2).pow_(2).tolist()
        [2.25, 9.0]
        """
        return self._written("mul in place", self.mul(x))

    def div_(
        self, x: Self | Scalar, *, rounding_mode: Literal["trunc", "floor"] | None = None
    ) -> Self:
        """Divide in place; returns itself."""
        return self._written("div in place", self.div(x, rounding_mode=rounding_mode))

    def pow_(self, x: Self | Scalar) -> Self:
        """Raise to a power in place; returns itself."""
        return self._written("pow in place", self.pow(x))

    def clamp_(self, min_: Self | Scalar | None = None, max_: Self | Scalar | None = None) -> Self:
        """Limit in place; returns itself. Raises ArgumentError when neither limit is given.

        >>> Tensor([-3, 1, 9]).clamp_(0, 5).tolist()
        [0, 1, 5]
        """
        return self._written("clamp_", self.clamp(min_, max_))

    def masked_fill_(self, mask: Self, value: Self | Scalar) -> Self:
        """Write `value` where the bool mask holds; returns itself.

        >>> Tensor([1, 2, 3]).masked_fill_(Tensor([True, False, True]), 0).tolist()
        [0, 2, 0]
        """
        return self._written("masked_fill_", self.masked_fill(mask, value))

    def lerp_(self, end: Self, weight: Self | Scalar) -> Self:
        """Move towards `end` by `weight` in place; returns itself.

        >>> Tensor([0.0, 10.0]).lerp_(Tensor([10.0, 20.0]), 0.5).tolist()
        [5.0, 15.0]
        """
        return self._written("lerp_", self.lerp(end, weight))

    __iadd__, __isub__, __imul__, __itruediv__, __ipow__ = add_, sub_, mul_, div_, pow_

    # --- methods that take over a value

    def copy_(self, x: Self | Scalar) -> Self:
        """Write a tensor or number, broadcast, cast and moved to this device; returns itself.

        Raises ShapeError where it does not fit.

        >>> Tensor([1, 2]).copy_(Tensor(3.9)).tolist()
        [3, 3]
        """
        return self.assign(self.ufix(x).cast(self.dtype).to(self.device))

    def fill_(self, value: Self | Scalar) -> Self:
        """Write one number everywhere; returns itself. Raises ShapeError for more than one.

        >>> Tensor([1, 2]).fill_(7).tolist(), Tensor([1, 2]).zero_().tolist()
        ([7, 7], [0, 0])
        """
        number = self.ufix(value)
        if number.ndim:
            raise ShapeError(f"fill_: needs one number, got shape {number.shape}; use copy_")
        return self.copy_(number)

    def zero_(self) -> Self:
        """Write 0 everywhere; returns itself."""
        return self.assign(self.const_like(0))

    def uniform_(self, low: float = 0.0, high: float = 1.0) -> Self:
        """Redraw every element, uniform in [low, high); returns itself.

        Raises ArgumentError unless low < high.

        >>> x = Tensor.zeros(100).uniform_(2, 3)
        >>> bool((x >= 2).all() and (x < 3).all())
        True
        """
        drawn = self.uniform(*self.shape, low=low, high=high, dtype=self.dtype, device=self.device)
        return self.assign(drawn)

    def normal_(self, mean: float = 0.0, std: float = 1.0) -> Self:
        """Redraw every element from a normal distribution; returns itself.

        Raises ArgumentError for a negative deviation.

        >>> Tensor.zeros(2).normal_(10.0, 0.0).tolist()
        [10.0, 10.0]
        """
        drawn = self.normal(*self.shape, mean=mean, std=std, dtype=self.dtype, device=self.device)
        return self.assign(drawn)

    # --- methods of the elements alone

    def abs_(self) -> Self:
        """Take the magnitude in place; returns itself."""
        return self._written("abs_", self.abs())

    def neg_(self) -> Self:
        """Negate in place; returns itself.

        >>> Tensor([1.5, -4.0]).neg_().abs_().floor_().tolist()
        [1.0, 4.0]
        """
        return self._written("neg_", self.neg())

    def exp_(self) -> Self:
        """Raise e to each element in place; returns itself."""
        return self._written("exp_", self.exp())

    def log_(self) -> Self:
        """Take the natural logarithm in place; returns itself."""
        return self._written("log_", self.log())

    def sqrt_(self) -> Self:
        """Take the square root in place; returns itself.

        >>> Tensor([4.0, 16.0]).sqrt_().reciprocal_().tolist()
        [0.5, 0.25]
        """
        return self._written("sqrt_", self.sqrt())

    def rsqrt_(self) -> Self:
        """Take the reciprocal of the square root in place; returns itself."""
        return self._written("rsqrt_", self.rsqrt())

    def reciprocal_(self) -> Self:
        """Take the reciprocal in place; returns itself."""
        return self._written("reciprocal_", self.reciprocal())

    def floor_(self) -> Self:
        """Round down in place; returns itself."""
        return self._written("floor_", self.floor())

    def ceil_(self) -> Self:
        """Round up in place; returns itself."""
        return self._written("ceil_", self.ceil())

    def round_(self) -> Self:
        """Round to the nearest integer in place; returns itself."""
        return self._written("round_", self.round())

    def trunc_(self) -> Self:
        """Round toward zero in place; returns itself."""
        return self._written("trunc_", self.trunc())

    def relu_(self) -> Self:
        """Replace negative elements by 0 in place; returns itself.

        >>> Tensor([-1.0, 2.0]).relu_().tolist()
        [0.0, 2.0]
        """
        return self._written("relu_", self.relu())

    def sigmoid_(self) -> Self:
        """Take the logistic function in place; returns itself."""
        return self._written("sigmoid_", self.sigmoid())

    def tanh_(self) -> Self:
        """Take the hyperbolic tangent in place; returns itself."""
        return self._written("tanh_", self.tanh())
