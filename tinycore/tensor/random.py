"""Random tensors: one counted stream, the same on every device.

Floor 5. `manual_seed` sets the key and puts the counter to 0. Each call takes the next block of
counters, at the time of the call, whatever is computed later and where; 64 bits are
Op.THREEFRY(counter, key), two 32-bit words each, the low one first. Key and counter reach kernels
in a small buffer, so that a new call needs no new kernel, and a captured step draws anew each time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, Self

import numpy

from tinycore.config import settings
from tinycore.dtype import DType, DTypeLike, dtypes, to_dtype
from tinycore.errors import ArgumentError, DTypeError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import floating_dtype
from tinycore.tensor.core import canonical
from tinycore.tensor.creation import float_or, sizes_from
from tinycore.tensor.losses import Losses
from tinycore.tensor.runtime import HostArray, runtime
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.shape import Shape

Ints = int | Sequence[int]


class Stream:
    """The key and how many counters were taken."""

    def __init__(self) -> None:
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Start over with the key of a seed."""
        digest = hashlib.blake2b(str(int(seed)).encode(), digest_size=8).digest()
        self.key = int.from_bytes(digest, "little")
        self.counter = 0

    def take(self, count: int) -> HostArray:
        """[key, first counter] of the next `count` counters."""
        state = numpy.array([self.key, self.counter], numpy.uint64)
        self.counter = (self.counter + count) % (1 << 64)
        return state


stream = Stream()


def random_words(count: int, device: str) -> UOp:
    """`count` random 64-bit words."""
    state = runtime().from_host(
        stream.take(count), dtypes.uint64, device, lambda: stream.take(count)
    )
    key = graph.broadcast_to(graph.shrink(state, [(0, 1)]), (count,))
    first = graph.broadcast_to(graph.shrink(state, [(1, 2)]), (count,))
    return (graph.arange(count, dtypes.uint64, device) + first).alu(Op.THREEFRY, key)


def random_halves(count: int, device: str) -> UOp:
    """`count` random 32-bit words."""
    words = graph.insert_axis(random_words(-(-count // 2), device), 1, 2)
    places = graph.arange(2, dtypes.uint64, device)
    places = places * graph.full_like(places, 32)
    shifted = words >> graph.broadcast_to(places, words.shape)
    halves = graph.reshape(shifted.cast(dtypes.uint32), (words.shape[0] * 2,))
    return graph.shrink(halves, [(0, count)])


def unit_interval(count: int, dtype: DType, device: str) -> UOp:
    """`count` floats in [0, 1): as many leading random bits as the dtype is precise."""
    precision = dtypes.finfo(dtype)[1] + 1
    if dtype is dtypes.float64:
        bits, width = random_words(count, device), 64
    else:
        bits, width = random_halves(count, device), 32
    kept = bits >> graph.full_like(bits, width - precision)
    wide = dtype if dtype is dtypes.float64 else dtypes.float32
    number = kept.cast(wide)
    return (number * graph.full_like(number, 2.0**-precision)).cast(dtype)


class Random(Losses):
    """Constructors that draw, and dropout."""

    __slots__ = ()

    @staticmethod
    def manual_seed(seed: int = 0) -> None:
        """Start the stream over: equal seeds give equal numbers on every device."""
        stream.seed(seed)

    @classmethod
    def random(
        cls,
        shape: Shape,
        dtype: DType,
        device: str | None,
        contiguous: bool,
        requires_grad: bool | None,
    ) -> Self:
        """Floats in [0, 1). Raises DTypeError for another dtype."""
        if not dtypes.is_float(dtype):
            raise DTypeError(f"rand: needs a floating-point dtype, got {dtype!r}")
        place = canonical(device)
        if 0 in shape:
            return cls.from_uop(graph.full(shape, dtype, 0, place)).marked(requires_grad)
        drawn = cls.from_uop(graph.reshape(unit_interval(math.prod(shape), dtype, place), shape))
        return (drawn.contiguous() if contiguous else drawn).marked(requires_grad)

    @classmethod
    def rand(
        cls,
        *shape: Ints,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        contiguous: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """Uniform in [0, 1)."""
        return cls.random(
            sizes_from("rand", shape), float_or(dtype), device, contiguous, requires_grad
        )

    @classmethod
    def randn(
        cls,
        *shape: Ints,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Normal with mean 0 and deviation 1, by Box and Muller."""
        target = float_or(dtype)
        floating_dtype("randn", target)
        wide = target if target is dtypes.float64 else dtypes.float32
        pair = cls.random((2, *sizes_from("randn", shape)), wide, device, True, None)
        radius = ((1 - pair[1]).log() * -2).sqrt()
        return (
            (radius * (pair[0] * (2 * math.pi)).cos())
            .cast(target)
            .contiguous()
            .marked(requires_grad)
        )

    @classmethod
    def uniform(
        cls,
        *shape: Ints,
        low: float = 0.0,
        high: float = 1.0,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Uniform in [low, high)."""
        target = float_or(dtype)
        drawn = cls.random(
            sizes_from("uniform", shape),
            target if dtypes.is_float(target) else dtypes.default_float,
            device,
            False,
            None,
        )
        return (drawn * (high - low) + low).cast(target).contiguous().marked(requires_grad)

    @classmethod
    def normal(
        cls,
        *shape: Ints,
        mean: float = 0.0,
        std: float = 1.0,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Normal with a mean and a deviation."""
        if std < 0:
            raise ArgumentError(f"normal: a deviation cannot be negative, got {std}")
        drawn = cls.randn(sizes_from("normal", shape), device=device, dtype=dtype)
        return (drawn * std + mean).marked(requires_grad)

    @classmethod
    def randint(
        cls,
        *shape: Ints,
        low: int = 0,
        high: int = 10,
        device: str | None = None,
        dtype: DTypeLike = dtypes.int32,
    ) -> Self:
        """Integers from low below high, each as likely as the next to 2**-32 of the range.

        Raises DTypeError for a dtype that is no integer, ArgumentError for an empty range.
        """
        target, sizes, place = to_dtype(dtype), sizes_from("randint", shape), canonical(device)
        if not dtypes.is_int(target):
            raise DTypeError(f"randint: needs an integer dtype, got {target!r}")
        if not all(isinstance(n, (int, numpy.integer)) for n in (low, high)) or high <= low:
            raise ArgumentError(f"randint: needs integers low < high, got {low!r} and {high!r}")
        if low < dtypes.min(target) or high - 1 > dtypes.max(target):
            raise ArgumentError(f"randint: {target!r} does not hold all from {low} below {high}")
        if 0 in sizes:
            return cls.from_uop(graph.full(sizes, target, 0, place))
        span, count = int(high) - int(low), math.prod(sizes)
        if span <= 1 << 32:
            wide = random_halves(count, place).cast(dtypes.uint64)
            drawn = (wide * graph.full_like(wide, span)) >> graph.full_like(wide, 32)
        else:
            wide = random_words(count, place)
            drawn = wide.alu(Op.MOD, graph.full_like(wide, span))
        number = drawn.cast(target)
        shifted = number + graph.full_like(number, low) if low else number
        return cls.from_uop(graph.reshape(shifted, sizes)).contiguous()

    @classmethod
    def scaled_uniform(cls, *shape: Ints, **options: Any) -> Self:
        """Uniform in [-1, 1), divided by the root of the number of elements."""
        sizes = sizes_from("scaled_uniform", shape)
        bound = 1 / math.sqrt(max(1, math.prod(sizes)))
        return cls.uniform(sizes, low=-bound, high=bound, **options)

    @classmethod
    def glorot_uniform(cls, *shape: Ints, **options: Any) -> Self:
        """Uniform within sqrt(6 / (inputs + outputs)), by Glorot and Bengio."""
        sizes = sizes_from("glorot_uniform", shape)
        bound = math.sqrt(6 / (first_size("glorot_uniform", sizes) + math.prod(sizes[1:])))
        return cls.uniform(sizes, low=-bound, high=bound, **options)

    @classmethod
    def kaiming_uniform(cls, *shape: Ints, a: float = 0.01, **options: Any) -> Self:
        """Uniform within sqrt(6 / ((1 + a*a) * inputs)), by He and others; `a` is their slope."""
        sizes = sizes_from("kaiming_uniform", shape)
        first_size("kaiming_uniform", sizes)
        bound = math.sqrt(6 / ((1 + a * a) * max(1, math.prod(sizes[1:]))))
        return cls.uniform(sizes, low=-bound, high=bound, **options)

    @classmethod
    def kaiming_normal(cls, *shape: Ints, a: float = 0.01, **options: Any) -> Self:
        """Normal with deviation sqrt(2 / ((1 + a*a) * inputs)), by He and others."""
        sizes = sizes_from("kaiming_normal", shape)
        first_size("kaiming_normal", sizes)
        return cls.normal(
            sizes,
            mean=0.0,
            std=math.sqrt(2 / ((1 + a * a) * max(1, math.prod(sizes[1:])))),
            **options,
        )

    def rand_like(
        self,
        dtype: DTypeLike | None = None,
        device: str | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Uniform in [0, 1) in the shape, dtype and device of this tensor."""
        return self.rand(
            self.shape,
            dtype=dtype or self.as_float().dtype,
            device=device or self.device,
            requires_grad=requires_grad,
        )

    def randn_like(
        self,
        dtype: DTypeLike | None = None,
        device: str | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Normal in the shape, dtype and device of this tensor."""
        return self.randn(
            self.shape,
            dtype=dtype or self.as_float().dtype,
            device=device or self.device,
            requires_grad=requires_grad,
        )

    @classmethod
    def randperm(cls, n: int, device: str | None = None, dtype: DTypeLike = dtypes.int32) -> Self:
        """The integers below n in random order: the ranks of random numbers."""
        drawn = (
            cls.from_uop(random_words(n, canonical(device))).contiguous()
            if n
            else cls.empty(0, device=device)
        )
        places = cls.from_uop(graph.arange(n, dtypes.default_int, drawn.device))
        before = (drawn < drawn.unsqueeze(1)) | (
            drawn.eq(drawn.unsqueeze(1)) & (places < places.unsqueeze(1))
        )
        return before.sum(1, dtype=dtypes.int32).cast(dtype).contiguous()

    def multinomial(self, num_samples: int = 1, replacement: bool = False) -> Self:
        """Indices drawn with these weights, one row or one per row: (C) -> (S), (N, C) -> (N, S).

        Raises ShapeError for other shapes, ArgumentError when more are drawn without replacement
        than there are.
        """
        if not 1 <= self.ndim <= 2 or num_samples < 1:
            raise ShapeError(
                f"multinomial: needs weights of one or two axes and a positive count, got "
                f"{self.shape}"
            )
        if not replacement and num_samples > self.shape[-1]:
            raise ArgumentError(
                f"multinomial: {num_samples} of {self.shape[-1]} without replacement"
            )
        weights = (self.unsqueeze(0) if self.ndim == 1 else self).cast(dtypes.float32)
        if replacement or num_samples == 1:
            steps = weights.cumsum(1)
            drawn = self.rand(weights.shape[0], num_samples, 1, device=self.device) * steps[
                :, -1:
            ].unsqueeze(1)
            found = (
                (steps.unsqueeze(1) <= drawn)
                .sum(-1, dtype=dtypes.int32)
                .clamp(max_=weights.shape[1] - 1)
            )
        else:  # the largest of log(weight) + Gumbel noise, by Efraimidis and Spirakis
            keys = weights.log() - (-(1 - self.rand(weights.shape, device=self.device)).log()).log()
            order = (keys.unsqueeze(1) > keys.unsqueeze(2)).sum(-1, dtype=dtypes.int32)
            ranks = self.from_uop(graph.arange(num_samples, dtypes.int32, self.device)).unsqueeze(1)
            found = order.unsqueeze(1).eq(ranks).argmax(-1)
        found = found.cast(dtypes.int32)
        return found.squeeze(0) if self.ndim == 1 else found

    def dropout(self, p: float = 0.5) -> Self:
        """In training, zero with probability p and the rest divided by 1 - p; else unchanged.

        Raises ArgumentError unless 0 <= p <= 1.
        """
        if not 0 <= p <= 1:
            raise ArgumentError(f"dropout: p is a probability, got {p}")
        if not settings.TRAINING or p == 0:
            return self
        if p == 1:
            return self.const_like(0)
        kept = (
            self.rand(self.shape, device=self.device, dtype=dtypes.float32, contiguous=False) >= p
        )
        return kept.contiguous().where(self / (1.0 - p), 0)

    def dropped(self, p: float) -> Self:
        """Dropout, for the classes before this one."""
        return self.dropout(p)


def first_size(name: str, sizes: Shape) -> int:
    """The number of outputs of a weight. Raises ShapeError for a weight with no axes."""
    if not sizes:
        raise ShapeError(f"{name}: a weight needs at least one axis")
    return sizes[0]
