"""The counter-based random stream, and its conversion to numbers.

Floor 5. A word is 64 bits: Threefry-2x32 of a counter and the key with 20 rounds (Salmon et al.,
"Parallel Random Numbers: As Easy as 1, 2, 3", 2011). Key and counter reach kernels in a small
buffer, so that a new call needs no new kernel, and a captured step draws anew each time.
"""

from __future__ import annotations

import os
from functools import partial
from operator import index
from typing import Final

from tinycore._deferred import deferred, numpy
from tinycore._locks import lock
from tinycore.dtype import DType, dtypes
from tinycore.tensor import graph
from tinycore.tensor.runtime import HostArray, runtime
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.shape import DeviceLike

SHORT_SPAN = 1 << 16
"""Largest span that is drawn from 32 bits, uniform to within 2**-16."""


STREAM_KEY_BYTES: Final = 8

blake2b: Final = deferred("hashlib:blake2b")


class Stream:
    """The key, and the number of counters used. Until a seed is chosen the key is the process's."""

    def __init__(self) -> None:
        self.lock = lock()
        self.position = int.from_bytes(os.urandom(STREAM_KEY_BYTES), "little"), 0

    @property
    def position(self) -> tuple[int, int]:
        """The key and the next counter, from which a stream goes on."""
        return self.key, self.counter

    @position.setter
    def position(self, position: tuple[int, int]) -> None:
        with self.lock:
            self.key, self.counter = position

    def seed(self, seed: int) -> None:
        """Start over with the key of a seed: a digest, so that neighbors have nothing in common."""
        digest = blake2b(str(int(seed)).encode(), digest_size=STREAM_KEY_BYTES).digest()
        self.position = int.from_bytes(digest, "little"), 0

    def __reduce__(self) -> str:
        """The one stream of the other process, for the actions of a captured step."""
        return "stream"

    def take(self, count: int) -> HostArray:
        """[key, first counter] of the next `count` counters."""
        count = index(count)
        with self.lock:
            key, first = self.key, self.counter
            self.counter = (first + count) % (1 << 64)
        return numpy.array([key, first], numpy.uint64)


stream = Stream()


def state_of_stream() -> HostArray:
    """[key, next counter] of the one stream."""
    return numpy.array(stream.position, numpy.uint64)


def restart(seed: int) -> None:
    """Start the one stream over with the key of a seed; replays of a captured step do so, too."""
    stream.seed(seed)
    runtime().repeat(partial(stream.seed, seed), ("seed", seed))


def go_on_from(key: int, counter: int) -> None:
    """Go on from a position of the one stream; replays of a captured step do so, too."""
    move = partial(setattr, stream, "position", (key, counter))
    move()
    runtime().repeat(move, ("position", key, counter))


def random_words(count: int, device: DeviceLike) -> UOp:
    """`count` random 64-bit words."""
    take = partial(stream.take, count)
    state = runtime().from_host(take(), dtypes.uint64, device, take)
    return words_from(graph.shrink(state, [(0, 1)]), graph.shrink(state, [(1, 2)]), count)


def words_from(key: UOp, first: UOp, count: int) -> UOp:
    """The random 64-bit words of `count` counters from the first, with a key: both of shape (1)."""
    numbers = graph.arange(count, dtypes.uint64, key.device)
    counters = numbers + graph.broadcast_to(first, (count,))
    return counters.alu(Op.THREEFRY, graph.broadcast_to(key, (count,)))


def random_halves(count: int, device: DeviceLike) -> UOp:
    """`count` random 32-bit words."""
    return halves_of(random_words(-(-count // 2), device), count)


def halves_of(words: UOp, count: int) -> UOp:
    """The first `count` 32-bit words of 64-bit words, the low one of each first."""
    return graph.shrink(graph.bitcast(words, dtypes.uint32), [(0, count)])


def unit_interval(count: int, dtype: DType, device: DeviceLike) -> UOp:
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


def whole_numbers(span: int, count: int, device: DeviceLike) -> UOp:
    """`count` uint64 numbers below `span`: random bits as a fraction, times the span."""
    if span <= SHORT_SPAN or (span <= 1 << 32 and span.bit_count() == 1):
        return times_modulo(random_halves(count, device).cast(dtypes.uint64), span) >> bits(
            count, device
        )
    words = random_words(count, device)
    if span == 1 << 64:
        return words
    if span <= 1 << 32:
        return upper_half(words, span)
    product, lower = times_modulo(words, span), upper_half(random_words(count, device), span)
    carry = (product + lower < product).cast(dtypes.uint64)
    return upper_half(words, span) + carry


def upper_half(x: UOp, factor: int) -> UOp:
    """The upper 64 bits of a product with a factor below 2**64, from products of halves."""
    half = bits(x.shape[0], x.device)
    mask = graph.full_like(x, (1 << 32) - 1)
    high, low = x >> half, x & mask
    across = times_modulo(high, factor & 0xFFFFFFFF) + (
        times_modulo(low, factor & 0xFFFFFFFF) >> half
    )
    other = times_modulo(low, factor >> 32) + (across & mask)
    return times_modulo(high, factor >> 32) + (across >> half) + (other >> half)


def times_modulo(x: UOp, factor: int) -> UOp:
    """x * factor modulo 2**64."""
    return x * graph.full_like(x, factor)


def bits(count: int, device: DeviceLike) -> UOp:
    """The number 32, to shift by."""
    return graph.full((count,), dtypes.uint64, 32, device)
