"""Activation functions.

Floor 5. The formulas are those of the papers and of torch; composed ones run in at least float32.
"""

from __future__ import annotations

import math
from typing import Self

from tinycore.dtype import Scalar
from tinycore.errors import ArgumentError
from tinycore.tensor.methods.functions import in_wide_float
from tinycore.tensor.methods.special import Special
from tinycore.tensor.methods.templates import templated
from tinycore.tensor.signatures import renamed
from tinycore.uop.node import UOp


class Activations(Special):
    """Activation functions."""

    __slots__ = ()

    @templated
    def relu(self) -> Self:
        """max(a, 0); the derivative at 0 is 0. NaN stays NaN.

        >>> Tensor([-1.0, 0.0, 2.0]).relu().tolist()
        [0.0, 0.0, 2.0]
        """
        return (self <= 0).where(0, self)

    def relu6(self) -> Self:
        """min(max(a, 0), 6).

        >>> Tensor([-1.0, 2.0, 9.0]).relu6().tolist()
        [0.0, 2.0, 6.0]
        """
        return self.hardtanh(0, 6)

    @templated
    def leaky_relu(self, neg_slope: float = 0.01) -> Self:
        """a above 0, a * neg_slope below.

        >>> Tensor([-2.0, 3.0]).leaky_relu(0.25).tolist()
        [-0.5, 3.0]
        """
        return (self > 0).where(self, self * neg_slope)

    def hardtanh(self, min_val: Scalar = -1, max_val: Scalar = 1) -> Self:
        """a clamped between two values; no gradient at or beyond them.

        >>> Tensor([-3.0, 0.5, 3.0]).hardtanh().tolist()
        [-1.0, 0.5, 1.0]
        """
        inside = (self > min_val) & (self < max_val)
        return inside.where(self, self.detach().clamp(min_val, max_val))

    def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
        """alpha * a + beta clamped between 0 and 1.

        >>> Tensor([-4.0, 0.0, 4.0]).hardsigmoid().tolist()
        [0.0, 0.5, 1.0]
        """
        return (self * alpha + beta).hardtanh(0, 1)

    @templated
    def hardswish(self) -> Self:
        """a * relu6(a + 3) / 6.

        >>> Tensor([-1.0, 1.0, 4.0]).hardswish().numpy().round(4)
        array([-0.3333,  0.6667,  4.    ], dtype=float32)
        """
        x = self._as_float()
        return x * ((x + 3).relu6() * (1 / 6))

    @in_wide_float
    def silu(self) -> Self:
        """a * sigmoid(a).

        >>> Tensor([-1.0, 0.0, 1.0]).silu().numpy().round(4)
        array([-0.2689,  0.    ,  0.7311], dtype=float32)
        """
        return self * self.sigmoid()

    swish = renamed(silu)

    @templated
    @in_wide_float
    def gelu(self, approximate: str = "tanh") -> Self:
        """a * P(X <= a) of a normal X: approximated through tanh, or exact through erf ("none").

        Raises ArgumentError for another word. Hendrycks and Gimpel, arXiv:1606.08415.

        >>> Tensor([-1.0, 1.0]).gelu().numpy().round(4)
        array([-0.1588,  0.8412], dtype=float32)
        >>> Tensor([-1.0, 1.0]).gelu("none").numpy().round(4)
        array([-0.1587,  0.8413], dtype=float32)
        """
        if approximate == "none":
            return self * 0.5 * ((self * math.sqrt(0.5)).erf() + 1)
        if approximate != "tanh":
            raise ArgumentError(f"gelu: approximate {approximate!r} is neither 'tanh' nor 'none'")
        return self * ((self + self * self * self * 0.044715) * math.sqrt(8 / math.pi)).sigmoid()

    @in_wide_float
    def quick_gelu(self) -> Self:
        """a * sigmoid(1.702 a).

        >>> Tensor([-1.0, 1.0]).quick_gelu().numpy().round(4)
        array([-0.1542,  0.8458], dtype=float32)
        """
        return self * (self * 1.702).sigmoid()

    @templated
    @in_wide_float
    def elu(self, alpha: float = 1.0) -> Self:
        """a above 0, alpha * (exp(a) - 1) below.

        >>> Tensor([-1.0, 0.0, 2.0]).elu().numpy().round(4)
        array([-0.6321,  0.    ,  2.    ], dtype=float32)
        """
        return (self > 0).where(self, (self > 0).where(0.0, self).expm1() * alpha)

    @in_wide_float
    def celu(self, alpha: float = 1.0) -> Self:
        """a above 0, alpha * (exp(a / alpha) - 1) below. Raises ArgumentError for an alpha of 0.

        >>> Tensor([-1.0, 0.0, 2.0]).celu(2.0).numpy().round(4)
        array([-0.7869,  0.    ,  2.    ], dtype=float32)
        """
        if alpha == 0:
            raise ArgumentError("celu: alpha must not be 0, which a / alpha divides by")
        return (self > 0).where(self, ((self > 0).where(0.0, self) / alpha).expm1() * alpha)

    @in_wide_float
    def selu(self, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Self:
        """gamma * elu(a, alpha), by Klambauer and others, arXiv:1706.02515.

        >>> Tensor([-1.0, 0.0, 2.0]).selu().numpy().round(4)
        array([-1.1113,  0.    ,  2.1014], dtype=float32)
        """
        return self.elu(alpha) * gamma

    @templated
    @in_wide_float
    def softplus(self, beta: float = 1.0) -> Self:
        """log(1 + exp(beta * a)) / beta, without overflow.

        >>> Tensor([0.0, 100.0]).softplus().numpy().round(4)
        array([  0.6931, 100.    ], dtype=float32)
        """
        x = self if beta == 1 else self * beta
        down, negative = x._folded()
        result = negative.where(0.0, x) + down.exp().log1p()
        return result if beta == 1 else result / beta

    @in_wide_float
    def logsigmoid(self) -> Self:
        """log(sigmoid(a)), without overflow.

        >>> Tensor([-100.0, 0.0]).logsigmoid().numpy().round(4)
        array([-100.    ,   -0.6931], dtype=float32)
        """
        down, negative = self._folded()
        return negative.where(self, 0.0) - down.exp().log1p()

    @in_wide_float
    def mish(self) -> Self:
        """a * tanh(softplus(a)), by Misra, arXiv:1908.08681.

        >>> Tensor([-1.0, 1.0]).mish().numpy().round(4)
        array([-0.3034,  0.8651], dtype=float32)
        """
        return self * self.clamp(max_=20.0).softplus().tanh()  # from where on it is 1

    def softsign(self) -> Self:
        """a / (1 + |a|).

        >>> Tensor([-3.0, 0.0, 1.0]).softsign().tolist()
        [-0.75, 0.0, 0.5]
        """
        x = self._as_float()
        value = x / (x.abs() + 1)
        return value._called(slope_of_softsign, x)


def slope_of_softsign(g: UOp, call: UOp) -> list[Activations]:
    """d softsign(a) = da / (1 + |a|)**2."""
    share = (Activations._from_node(call.src[1]).abs() + 1).reciprocal()
    return [Activations._from_node(g) * share * share]
