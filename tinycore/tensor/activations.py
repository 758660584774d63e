"""Activation functions.

Floor 5. The formulas are those of the papers and of torch; composed ones run in at least float32.
"""

from __future__ import annotations

import math
from typing import Self

from tinycore.dtype import Scalar
from tinycore.errors import ArgumentError
from tinycore.tensor.functions import in_wide_float
from tinycore.tensor.special import Special


class Activations(Special):
    """What follows a layer."""

    __slots__ = ()

    def relu(self) -> Self:
        """max(a, 0); the derivative at 0 is 0. NaN stays NaN."""
        return (self <= 0).where(0, self)

    def relu6(self) -> Self:
        """min(max(a, 0), 6)."""
        return self.hardtanh(0, 6)

    def leaky_relu(self, neg_slope: float = 0.01) -> Self:
        """a above 0, a * neg_slope below."""
        return (self > 0).where(self, self * neg_slope)

    def hardtanh(self, min_val: Scalar = -1, max_val: Scalar = 1) -> Self:
        """a kept between two values; no gradient at or beyond them."""
        inside = (self > min_val) & (self < max_val)
        return inside.where(self, self.detach().clamp(min_val, max_val))

    def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
        """alpha * a + beta kept between 0 and 1."""
        return (self * alpha + beta).hardtanh(0, 1)

    def hardswish(self) -> Self:
        """a * relu6(a + 3) / 6."""
        return self * ((self + 3).relu6() * (1 / 6))

    def swish(self) -> Self:
        """a * sigmoid(a), by its older name."""
        return self.silu()

    @in_wide_float
    def silu(self) -> Self:
        """a * sigmoid(a)."""
        return self * self.sigmoid()

    @in_wide_float
    def gelu(self, approximate: str = "tanh") -> Self:
        """a * P(X <= a) of a normal X: approximated through tanh, or exact through erf ("none")."""
        if approximate == "none":
            return self * 0.5 * ((self * math.sqrt(0.5)).erf() + 1)
        if approximate != "tanh":
            raise ArgumentError(f"gelu: approximate {approximate!r} is neither 'tanh' nor 'none'")
        return self * ((self + self * self * self * 0.044715) * math.sqrt(8 / math.pi)).sigmoid()

    @in_wide_float
    def quick_gelu(self) -> Self:
        """a * sigmoid(1.702 a)."""
        return self * (self * 1.702).sigmoid()

    @in_wide_float
    def elu(self, alpha: float = 1.0) -> Self:
        """a above 0, alpha * (exp(a) - 1) below."""
        return (self > 0).where(self, (self > 0).where(0.0, self).expm1() * alpha)

    @in_wide_float
    def celu(self, alpha: float = 1.0) -> Self:
        """a above 0, alpha * (exp(a / alpha) - 1) below."""
        if alpha == 0:
            raise ArgumentError("celu: alpha must not be 0, which a / alpha divides by")
        return (self > 0).where(self, ((self > 0).where(0.0, self) / alpha).expm1() * alpha)

    @in_wide_float
    def selu(self, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Self:
        """gamma * elu(a, alpha)."""
        return self.elu(alpha) * gamma

    @in_wide_float
    def softplus(self, beta: float = 1.0) -> Self:
        """log(1 + exp(beta * a)) / beta, without overflow."""
        x = self if beta == 1 else self * beta
        down, negative = x.folded()
        result = negative.where(0.0, x) + down.exp().log1p()
        return result if beta == 1 else result / beta

    @in_wide_float
    def logsigmoid(self) -> Self:
        """log(sigmoid(a)), without overflow."""
        down, negative = self.folded()
        return negative.where(self, 0.0) - down.exp().log1p()

    @in_wide_float
    def mish(self) -> Self:
        """a * tanh(softplus(a))."""
        return self * self.softplus().tanh()

    def softsign(self) -> Self:
        """a / (1 + |a|)."""
        return self / (self.abs() + 1)
