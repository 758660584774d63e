"""Tensor programs that a plugin's tests run on the stand-in of its hardware, against NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
import pytest

from tiny_testing.kernels import Array
from tinycore import Tensor, TinyJit, Variable, dtypes
from tinycore.dtype import DType
from tinycore.nn import Linear
from tinycore.nn.optim import SGD
from tinycore.nn.state import get_parameters

__all__ = ["TensorPrograms", "numbers"]


def numbers(*shape: int, seed: int = 0) -> Array:
    """Normally distributed float32 values, the same in every run."""
    return numpy.random.default_rng(seed).standard_normal(shape).astype("f")


@dataclass(frozen=True)
class TensorPrograms:
    """Programs over tensors of one device. Each method asserts what its program computes."""

    device: str

    def tensor(self, data: Any) -> Tensor:
        """A tensor on the device."""
        return Tensor(data, device=self.device)

    def close(self, found: Tensor, expected: Array, tolerance: float = 1e-5) -> None:
        """Assert where a value is, and that it is near to what NumPy has."""
        assert found.device == self.device
        scale = float(numpy.abs(expected).max())
        numpy.testing.assert_allclose(
            found.numpy(), expected, rtol=tolerance, atol=tolerance * scale
        )

    def elements(self) -> None:
        """Elementwise operations on a ragged shape with broadcasting."""
        a, b = numbers(37, 1, 29), numbers(11, 1, seed=1)
        x = self.tensor(a)
        self.close(x * self.tensor(b) + x.exp(), a * b + numpy.exp(a))

    def sums(self, axis: int | None) -> None:
        """A sum over one axis, or over both."""
        a = numbers(300, 70)
        self.close(self.tensor(a).sum(axis), a.sum(axis, dtype="d"))

    def softmax(self) -> None:
        """Two reductions over one axis."""
        a = numbers(3, 1000)
        powers = numpy.exp(a - a.max(-1, keepdims=True))
        self.close(self.tensor(a).softmax(), powers / powers.sum(-1, keepdims=True))

    def matmul(self, rows: int, inner: int, columns: int) -> None:
        """A product of matrices."""
        a, b = numbers(rows, inner), numbers(inner, columns, seed=1)
        self.close(self.tensor(a) @ self.tensor(b), a.astype("d") @ b)

    def matmul_of(
        self,
        dtype: DType,
        tolerance: float,
        sizes: tuple[int, int, int],
        wide: DType = dtypes.float64,
    ) -> None:
        """A product of matrices of another dtype, read as a wider one."""
        rows, inner, columns = sizes
        a, b = numbers(rows, inner), numbers(inner, columns, seed=1)
        found = self.tensor(a).cast(dtype) @ self.tensor(b).cast(dtype)
        self.close(found.cast(wide), a.astype("d") @ b, tolerance)

    def convolution(
        self, image: tuple[int, ...] = (2, 4, 9, 8), weight: tuple[int, ...] = (8, 4, 3, 3)
    ) -> None:
        """A convolution with padding 1 and stride 2."""
        torch = pytest.importorskip("torch")
        x, w = numbers(*image), numbers(*weight, seed=1)
        found = self.tensor(x).conv2d(self.tensor(w), padding=1, stride=2).realize()
        expected = torch.nn.functional.conv2d(*map(torch.from_numpy, (x, w)), None, 2, 1)
        self.close(found, expected.numpy())

    def integers(self) -> None:
        """Sums that wrap, and quotients toward zero."""
        a = numpy.array([5, -7, 2**31 - 1, -(2**31), 9], "i")
        b = numpy.array([2, 2, 1, -1, 0], "i")
        x, y = self.tensor(a), self.tensor(b)
        assert (x + 1).tolist() == [6, -6, -(2**31), -(2**31) + 1, 10]
        assert x.idiv(y).tolist() == [2, -4, 2**31 - 1, -(2**31), 0]

    def views(self, size: int = 1024) -> None:
        """Kernels whose operand starts at any element of a buffer."""
        a = numbers(size + 6)
        base = self.tensor(a).realize()
        for start in (0, 1, 2, 4):
            self.close(base[start : start + size].contiguous() * 2, a[start : start + size] * 2)

    def sums_of_a_variable_size(self) -> None:
        """A captured step whose size is a variable, and so the groups of its launches."""
        a, most = numbers(130, 8), 130

        @TinyJit
        def step(x: Tensor, n: Any) -> tuple[Tensor, Tensor]:
            columns = x[:n].sum(0).realize()
            doubled = (x[:n] * columns).contiguous().realize()
            return columns, doubled.sum(1).max().realize()

        for size in (3, 4, 130, 1, 65):
            n = Variable("n", 1, most).bind(size)
            columns, greatest = step(self.tensor(a).realize(), n)
            total = a[:size].sum(0)
            self.close(columns, total)
            self.close(greatest, (a[:size] * total).sum(1).max(), 1e-4)

    def independent_launches(self) -> None:
        """A captured step of launches that may overlap, and one that reads what they wrote."""

        @TinyJit
        def step(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            parts = (x + 1).realize(), (y * 2).realize(), (x * 3).realize()
            return *parts, (parts[0] + parts[1] * parts[2]).realize()

        for seed in range(5):
            a, b = numbers(7, 33, seed=seed), numbers(7, 33, seed=seed + 10)
            found = step(self.tensor(a).realize(), self.tensor(b).realize())
            expected = a + 1, b * 2, a * 3, a + 1 + b * 2 * (a * 3)
            for one, other in zip(found, expected, strict=True):
                self.close(one, other)

    def training_step(self, steps: int = 3) -> None:
        """Steps of gradient descent, each of which lowers the loss."""
        x, y = numbers(32, 16), numbers(32, 4, seed=1)
        layer = Linear(16, 4)
        parameters = get_parameters(layer)
        assert {parameter.device for parameter in parameters} == {self.device}
        optimizer = SGD(parameters, lr=0.05)
        losses = []
        with Tensor.train():
            for _ in range(steps):
                optimizer.zero_grad()
                loss = ((layer(self.tensor(x)) - self.tensor(y)) ** 2).mean().backward()
                optimizer.step()
                losses.append(loss.item())
        assert losses == sorted(losses, reverse=True)
