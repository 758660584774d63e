"""Functions for the mirror's lines besides torch's: tinycore's conventions in terms of torch.

Equal extremes share the gradient, places of extremes are the first ones, indices may be
negative, slices may have negative steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy


class Place:
    """`place[1:, ::-1]` is the index that stands between the brackets."""

    def __getitem__(self, index: Any) -> Any:
        return index


class Conventions:
    """The functions, given the module torch."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def constant(self, value: float) -> Any:
        """A number as a tensor."""
        return self.torch.tensor(value, dtype=self.torch.float64)

    def softsign(self, x: Any) -> Any:
        """x / (1 + |x|)."""
        return x / (1 + x.abs())

    def leaf(self, x: Any) -> Any:
        """The value without its graph."""
        return x.detach().requires_grad_(x.is_floating_point())

    def product(self, x: Any, axes: Sequence[int], keep: bool) -> Any:
        """The product along several axes."""
        for axis in sorted(axes, reverse=True):
            x = x.prod(axis, keepdim=keep)
        return x

    def first_argmax(self, x: Any, axis: int, keep: bool = False) -> Any:
        """Index of the greatest element, the first of equals."""
        x = x.long() if x.dtype is self.torch.bool else x.detach()
        numbers = self.torch.arange(x.shape[axis])
        numbers = numbers.reshape([-1 if a == axis % x.ndim else 1 for a in range(x.ndim)])
        hit = x == x.amax(axis, True)
        return self.torch.where(hit, numbers, x.shape[axis]).amin(axis, keep)

    def first_argmin(self, x: Any, axis: int, keep: bool = False) -> Any:
        """Index of the least element, the first of equals."""
        x = x.long() if x.dtype is self.torch.bool else x
        return self.first_argmax(~x if not x.is_floating_point() else -x, axis, keep)

    def sliced(self, x: Any, index: Any) -> Any:
        """x[index] by NumPy's rules."""
        return x.reshape(-1)[self.places(x, index)]

    def placed(self, x: Any, index: Any, value: Any) -> Any:
        """`x` with `value` at x[index]."""
        places = self.places(x, index)
        while value.ndim > places.ndim:
            value = value.squeeze(0)
        flat = x.reshape(-1).index_put((places,), value.expand(places.shape))
        return flat.reshape(x.shape)

    def places(self, x: Any, index: Any) -> Any:
        """Positions in the flat tensor that an index names."""
        numbers = numpy.arange(x.numel()).reshape(x.shape)[index]
        return self.torch.from_numpy(numpy.array(numbers))

    def padded(self, x: Any, pairs: Sequence[tuple[int, int]], mode: str, value: float) -> Any:
        """Elements around, or taken away."""
        for axis, (before, after) in enumerate(pairs):
            n = x.shape[axis]
            numbers = numpy.arange(-before, n + after)
            if mode == "constant":
                inside = (numbers >= 0) & (numbers < n)
                shape = [-1 if a == axis else 1 for a in range(x.ndim)]
                mask = self.torch.from_numpy(inside).reshape(shape)
                wide = self.row(x, axis, numpy.clip(numbers, 0, max(0, n - 1)), n)
                x = self.torch.where(mask, wide, self.torch.tensor(value).to(x.dtype))
                continue
            if mode == "reflect":
                numbers = numpy.where(numbers < 0, -numbers, numbers)
                numbers = numpy.where(numbers >= n, 2 * (n - 1) - numbers, numbers)
            elif mode == "circular":
                numbers = numbers % max(1, n)
            x = self.row(x, axis, numpy.clip(numbers, 0, max(0, n - 1)), n)
        return x

    def row(self, x: Any, axis: int, numbers: Any, n: int) -> Any:
        """Elements at some places of an axis; zeros for an empty axis."""
        if not n:
            shape = [len(numbers) if a == axis else m for a, m in enumerate(x.shape)]
            return self.torch.zeros(shape, dtype=x.dtype)
        return x.index_select(axis, self.torch.from_numpy(numbers))

    def scattered(
        self, x: Any, axis: int, index: Any, source: Any, kind: str, include_self: bool
    ) -> Any:
        """scatter_reduce; elements not included take no share of the derivative of an extreme."""
        if kind in ("amax", "amin") and not include_self and x.is_floating_point():
            x = x.scatter(axis, index, float("-inf" if kind == "amax" else "inf"))
            include_self = True
        return x.scatter_reduce(axis, index, source, kind, include_self=include_self)

    def max_pooled(
        self,
        x: Any,
        shape: Sequence[int],
        kernel: tuple[int, int],
        stride: int,
        padding: int,
        ceil_mode: bool,
    ) -> Any:
        """Greatest elements of windows, equal ones sharing the gradient."""
        for axis in (2, 3):
            reach = (shape[axis] - 1) * stride + kernel[axis - 2]
            after = max(0, reach - padding - x.shape[axis])
            pairs = [(padding, after) if a == axis else (0, 0) for a in range(4)]
            x = self.padded(x, pairs, "constant", -math.inf)
            x = x.narrow(axis, 0, reach).unfold(axis, kernel[axis - 2], stride)
        return x.amax((-1, -2))

    def attention(
        self,
        q: Any,
        k: Any,
        v: Any,
        mask: Any = None,
        is_causal: bool = False,
        enable_gqa: bool = False,
    ) -> Any:
        """softmax(q @ k.T / sqrt(d) + mask) @ v, which can be differentiated twice."""
        if enable_gqa:
            shared = q.shape[-3] // k.shape[-3]
            k, v = (x.repeat_interleave(shared, -3) for x in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if is_causal:
            mask = self.torch.ones(scores.shape[-2:], dtype=self.torch.bool).tril()
        if mask is not None and mask.dtype is self.torch.bool:
            scores = scores.masked_fill(~mask, -math.inf)
        elif mask is not None:
            scores = scores + mask
        return scores.softmax(-1) @ v

    def gradients(self, number: Any, targets: Sequence[Any]) -> list[Any]:
        """Derivatives, which can be differentiated; zeros without a path."""
        if not number.requires_grad:
            return [self.torch.zeros_like(t) for t in targets]
        found = self.torch.autograd.grad(number, targets, create_graph=True, allow_unused=True)
        pairs = zip(targets, found, strict=True)
        return [self.torch.zeros_like(t) if g is None else g for t, g in pairs]


def namespace(torch: Any) -> dict[str, Any]:
    """Everything by name, as the mirror's lines use it."""
    conventions = Conventions(torch)
    names = [n for n in dir(Conventions) if not n.startswith("_")]
    functions = {n: getattr(conventions, n) for n in names}
    return functions | {
        "torch": torch,
        "functional": torch.nn.functional,
        "place": Place(),
        "real": lambda x: x.double(),
        "truth": lambda x: x.bool(),
    }
