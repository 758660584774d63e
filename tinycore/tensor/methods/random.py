"""Random tensors from one counter-based stream, equal on every device.

Floor 5. A process begins with a key of its own; `manual_seed` sets it and puts the counter to 0.
Each call takes the next block of counters, at the time of the call, whatever is computed later and
where; see `stream`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

from tinycore._deferred import numpy
from tinycore.config import settings
from tinycore.dtype import DType, DTypeLike, dtypes, to_dtype
from tinycore.errors import ArgumentError, DTypeError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.checks import Ints, floating_dtype, same_device
from tinycore.tensor.core import canonical
from tinycore.tensor.methods.attention import Attention
from tinycore.tensor.methods.creation import float_or, sizes_from
from tinycore.tensor.methods.stream import (
    go_on_from,
    halves_of,
    random_words,
    restart,
    state_of_stream,
    unit_interval,
    whole_numbers,
    words_from,
)
from tinycore.tensor.runtime import runtime
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.shape import DeviceLike, Shape
from tinycore.uop.size import greatest_shape

if TYPE_CHECKING:
    from tinycore.tensor.tensor import Tensor


LONGEST_RANKED = 1 << 16
"""Length up to which a permutation is found by comparing all pairs, in one kernel."""


class Random(Attention):
    """Constructors that draw, and dropout."""

    __slots__ = ()

    @staticmethod
    def manual_seed(seed: int = 0) -> None:
        """Start the stream over: equal seeds give equal numbers on every device.

        Without a seed, each process draws other numbers.

        >>> Tensor.manual_seed(7)
        >>> first = Tensor.rand(3).tolist()
        >>> Tensor.manual_seed(7)
        >>> Tensor.rand(3).tolist() == first
        True
        """
        restart(seed)

    @classmethod
    def get_rng_state(cls, device: DeviceLike | None = None) -> Self:
        """The position of the stream of random numbers, for a checkpoint: uint64 of shape (2).

        >>> state = Tensor.get_rng_state()
        >>> first = Tensor.rand(3).tolist()
        >>> Tensor.set_rng_state(state)
        >>> Tensor.rand(3).tolist() == first
        True
        """
        memory = runtime().from_host(
            state_of_stream(), dtypes.uint64, canonical(device), state_of_stream
        )
        shown: Any = cls._from_node(memory)  # a replay writes to it
        kept: Self = shown.clone()
        return kept

    @staticmethod
    def set_rng_state(state: Tensor) -> None:
        """Go on from a position that `get_rng_state` gave, in this process or another one.

        Raises ArgumentError for another tensor.

        >>> state = Tensor.get_rng_state()
        >>> drawn = Tensor.rand(2).tolist()
        >>> Tensor.set_rng_state(state)
        >>> drawn == Tensor.rand(2).tolist()
        True
        """
        if state.shape != (2,) or state.dtype is not dtypes.uint64:
            raise ArgumentError(
                "set_rng_state: needs the uint64 tensor of shape (2,) that get_rng_state gave, "
                f"not {state.dtype!r} of shape {state.shape}"
            )
        go_on_from(*map(int, state.tolist()))

    def threefry(self, seed: Self) -> Self:
        """64 random bits from each counter and key: Threefry-2x32 with 20 rounds.

        uint64, broadcast; the low half of a number is the first of its two words. Raises DTypeError
        for another dtype. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011).

        >>> counters, key = Tensor([0, 1], dtype="uint64"), Tensor([42], dtype="uint64")
        >>> words = counters.threefry(key)
        >>> words.shape, words.dtype
        ((2,), dtypes.uint64)
        """
        for x in (self, seed):
            if x.dtype is not dtypes.uint64:
                raise DTypeError(f"threefry: counters and keys are uint64, got {x.dtype!r}")
        counters, keys = self._broadcasted("threefry", seed)
        return counters.alu(Op.THREEFRY, keys)

    @classmethod
    def random_bits(cls, key: Self, counter: Self, num: int) -> Self:
        """`num` random uint32 words: `threefry` of the counter and those after it.

        Key and counter are two uint32 words each, the low one first; so are the results of one
        counter. Raises ShapeError or DTypeError for other operands and a negative number.

        >>> key, counter = Tensor([1, 2], dtype="uint32"), Tensor([0, 0], dtype="uint32")
        >>> Tensor.random_bits(key, counter, 5).shape
        (5,)
        """
        (count,) = sizes_from("random_bits", (num,))
        for what, x in (("key", key), ("counter", counter)):
            if x.dtype is not dtypes.uint32:
                raise DTypeError(f"random_bits: the {what} must be uint32, got {x.dtype!r}")
            if x.shape != (2,):
                raise ShapeError(f"random_bits: the {what} has shape (2,), got {x.shape}")
        same_device("random_bits", [key.device, counter.device])
        first, place = counter.bitcast(dtypes.uint64).uop, key.bitcast(dtypes.uint64).uop
        return cls._from_node(halves_of(words_from(place, first, -(-count // 2)), count))

    @classmethod
    def _random(
        cls,
        shape: Shape,
        dtype: DType,
        device: DeviceLike | None,
        contiguous: bool,
        requires_grad: bool | None,
    ) -> Self:
        """Floats in [0, 1). Raises DTypeError for another dtype."""
        if not dtypes.is_float(dtype):
            raise DTypeError(f"rand: needs a floating-point dtype, got {dtype!r}")
        place = canonical(device)
        if 0 in shape:
            return cls._from_node(graph.full(shape, dtype, 0, place))._marked(requires_grad)
        whole = greatest_shape(shape)
        node = unit_interval(math.prod(whole), dtype, place)
        drawn = cls._from_node(fitting(graph.reshape(node, whole), shape))
        return (drawn.contiguous() if contiguous else drawn)._marked(requires_grad)

    @classmethod
    def rand(
        cls,
        *shape: Ints,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
        contiguous: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """Uniform in [0, 1). Raises DTypeError for a dtype that is no float.

        >>> x = Tensor.rand(2, 3)
        >>> x.shape, ((x >= 0) & (x < 1)).all().item()
        ((2, 3), True)
        """
        return cls._random(
            sizes_from("rand", shape), float_or(dtype), device, contiguous, requires_grad
        )

    @classmethod
    def randn(
        cls,
        *shape: Ints,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Normal with mean 0 and deviation 1, by Box and Muller.

        >>> Tensor.randn(2, 3, dtype="float16").dtype
        dtypes.float16
        """
        target = float_or(dtype)
        floating_dtype("randn", target)
        wide = target if target is dtypes.float64 else dtypes.float32
        pair = cls._random((2, *sizes_from("randn", shape)), wide, device, True, None)
        radius = ((1 - pair[1]).log() * -2).sqrt()
        return (
            (radius * (pair[0] * (2 * math.pi)).cos())
            .cast(target)
            .contiguous()
            ._marked(requires_grad)
        )

    @classmethod
    def uniform(
        cls,
        *shape: Ints,
        low: float = 0.0,
        high: float = 1.0,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Uniform in [low, high). Raises ArgumentError unless low < high.

        >>> Tensor.uniform(2, 3, low=-2, high=2).shape
        (2, 3)
        """
        if not low < high:
            raise ArgumentError(f"uniform: needs low < high, got {low} and {high}")
        target = float_or(dtype)
        drawn = cls._random(
            sizes_from("uniform", shape),
            target if dtypes.is_float(target) else dtypes.default_float,
            device,
            False,
            None,
        )
        scaled = drawn * (high - low) + low
        inside = (scaled >= high).where(low, scaled)  # rounding can reach what the draw cannot
        return inside.cast(target).contiguous()._marked(requires_grad)

    @classmethod
    def normal(
        cls,
        *shape: Ints,
        mean: float = 0.0,
        std: float = 1.0,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Normal with a mean and a deviation. Raises ArgumentError when that is negative.

        >>> Tensor.normal(2, 3, mean=10.0, std=0.0).tolist()
        [[10.0, 10.0, 10.0], [10.0, 10.0, 10.0]]
        """
        if std < 0:
            raise ArgumentError(f"normal: a deviation cannot be negative, got {std}")
        drawn = cls.randn(sizes_from("normal", shape), device=device, dtype=dtype)
        return (drawn * std + mean)._marked(requires_grad)

    @classmethod
    def randint(
        cls,
        *shape: Ints,
        low: int = 0,
        high: int = 10,
        device: DeviceLike | None = None,
        dtype: DTypeLike = dtypes.int32,
    ) -> Self:
        """Integers in [low, high), uniform to within 2**-16, or 2**-32 for many.

        Raises DTypeError for a dtype that is no integer, ArgumentError for an empty range or one
        that the dtype does not hold.

        >>> x = Tensor.randint(100, low=3, high=6)
        >>> x.min().item(), x.max().item(), x.dtype
        (3, 5, dtypes.int32)
        """
        target, sizes, place = to_dtype(dtype), sizes_from("randint", shape), canonical(device)
        if not dtypes.is_int(target):
            raise DTypeError(f"randint: needs an integer dtype, got {target!r}")
        if not all(isinstance(n, (int, numpy.integer)) for n in (low, high)) or high <= low:
            raise ArgumentError(f"randint: needs integers low < high, got {low!r} and {high!r}")
        if low < dtypes.min(target) or high - 1 > dtypes.max(target):
            raise ArgumentError(f"randint: {target!r} does not hold all from {low} below {high}")
        if 0 in sizes:
            return cls._from_node(graph.full(sizes, target, 0, place))
        whole = greatest_shape(sizes)
        drawn = cls._from_node(whole_numbers(int(high) - int(low), math.prod(whole), place))
        number = drawn.cast(target)
        shifted = number + number.const_like(int(low)) if low else number
        return cls._from_node(fitting(shifted.reshape(whole).uop, sizes)).contiguous()

    @classmethod
    def scaled_uniform(cls, *shape: Ints, **options: Any) -> Self:
        """Uniform in [-1, 1) divided by the root of the number of elements."""
        sizes = sizes_from("scaled_uniform", shape)
        bound = 1 / math.sqrt(max(1, math.prod(sizes)))
        return cls.uniform(sizes, low=-bound, high=bound, **options)

    @classmethod
    def glorot_uniform(cls, *shape: Ints, **options: Any) -> Self:
        """Uniform within sqrt(6 / (inputs + outputs)), by Glorot and Bengio (2010)."""
        sizes = sizes_from("glorot_uniform", shape)
        total = first_size("glorot_uniform", sizes) + math.prod(sizes[1:])
        bound = math.sqrt(6 / max(1, total))
        return cls.uniform(sizes, low=-bound, high=bound, **options)

    @classmethod
    def kaiming_uniform(cls, *shape: Ints, a: float = 0.01, **options: Any) -> Self:
        """Uniform within sqrt(6 / ((1 + a*a) * inputs)) (He et al., 2015); `a`: slope."""
        sizes = sizes_from("kaiming_uniform", shape)
        first_size("kaiming_uniform", sizes)
        bound = math.sqrt(6 / ((1 + a * a) * max(1, math.prod(sizes[1:]))))
        return cls.uniform(sizes, low=-bound, high=bound, **options)

    @classmethod
    def kaiming_normal(cls, *shape: Ints, a: float = 0.01, **options: Any) -> Self:
        """Normal with deviation sqrt(2 / ((1 + a*a) * inputs)) (He et al., 2015)."""
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
        device: DeviceLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Uniform in [0, 1) in the shape, float dtype and device of this tensor."""
        return self.rand(
            self.shape,
            dtype=dtype or self._as_float().dtype,
            device=device or self.device,
            requires_grad=requires_grad,
        )

    def randn_like(
        self,
        dtype: DTypeLike | None = None,
        device: DeviceLike | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Normal in the shape, float dtype and device of this tensor."""
        return self.randn(
            self.shape,
            dtype=dtype or self._as_float().dtype,
            device=device or self.device,
            requires_grad=requires_grad,
        )

    @classmethod
    def randperm(
        cls, n: int, device: DeviceLike | None = None, dtype: DTypeLike = dtypes.int32
    ) -> Self:
        """The integers below n in random order, that of random keys.

        Raises ShapeError for a negative n.

        >>> Tensor.randperm(5).sort()[0].tolist()
        [0, 1, 2, 3, 4]
        """
        (size,), target = sizes_from("randperm", (n,)), to_dtype(dtype)
        if not size:
            return cls._from_node(graph.full((0,), target, 0, canonical(device)))
        drawn = cls._from_node(random_words(size, canonical(device))).contiguous()
        if size > LONGEST_RANKED:
            return drawn.argsort().cast(target).contiguous()
        places = cls._from_node(graph.arange(size, dtypes.int32, drawn.device))
        before = (drawn < drawn.unsqueeze(1)) | (
            drawn.eq(drawn.unsqueeze(1)) & (places < places.unsqueeze(1))
        )
        return before.sum(1, dtype=dtypes.int32).cast(target).contiguous()

    def multinomial(self, num_samples: int = 1, replacement: bool = False) -> Self:
        """Indices drawn with these weights, one row or one per row: (C) -> (S), (N, C) -> (N, S).

        Weights are not negative, and some of a row are positive: an index with weight 0 is drawn
        only without replacement, after all others. Raises ShapeError for other shapes,
        ArgumentError when more are drawn without replacement than there are.

        >>> Tensor([0, 3, 0]).multinomial(4, replacement=True).tolist()
        [1, 1, 1, 1]
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
            steps, shape = weights.cumsum(1), (weights.shape[0], num_samples, 1)
            total = steps[:, -1:].unsqueeze(1)
            drawn = self.rand(shape, device=self.device, dtype=dtypes.float32) * total
            passed = steps.unsqueeze(1) <= drawn
            passed = passed & (steps.unsqueeze(1) < total)  # rounding may reach the total
            found = passed.sum(-1, dtype=dtypes.int32)
        else:  # who is first when each comes with its weight as rate (Efraimidis and Spirakis 2006)
            drawn = self.rand(weights.shape, device=self.device, dtype=dtypes.float32)
            found = ((1 - drawn).log() / -weights).argsort(-1)[:, :num_samples]
        found = found.cast(dtypes.int32)
        return found.squeeze(0) if self.ndim == 1 else found

    def dropout(self, p: float = 0.5) -> Self:
        """In training, zero with probability p and the rest divided by 1 - p; else unchanged.

        Raises ArgumentError unless 0 <= p <= 1.

        >>> with Tensor.train():
        ...     kept = Tensor.ones(4).dropout(0.5)
        >>> ((kept == 0) | (kept == 2)).all().item()
        True
        """
        if not 0 <= p <= 1:
            raise ArgumentError(f"dropout: p is a probability, got {p}")
        if not settings.TRAINING or p == 0:
            return self
        if p == 1:
            return self.const_like(0)
        return self._kept(p, self.shape).where(self / (1.0 - p), 0)

    def _dropped(self, p: float) -> Self:
        """Dropout, for the classes before this one."""
        return self.dropout(p)

    def _kept(self, p: float, shape: Shape) -> Self:
        """A mask in memory of what dropout keeps of a tensor of some shape."""
        drawn = self.rand(shape, device=self.device, dtype=dtypes.float32, contiguous=False)
        return (drawn >= p).contiguous()


def fitting(drawn: UOp, shape: Shape) -> UOp:
    """The first elements along each axis of a draw for the greatest shape.

    So a draw takes as many counters in each launch, whatever the Variables hold in it.
    """
    return drawn if drawn.shape == shape else graph.shrink(drawn, [(0, n) for n in shape])


def first_size(name: str, sizes: Shape) -> int:
    """The number of outputs of a weight. Raises ShapeError for a weight with no axes."""
    if not sizes:
        raise ShapeError(f"{name}: a weight needs at least one axis")
    return sizes[0]
