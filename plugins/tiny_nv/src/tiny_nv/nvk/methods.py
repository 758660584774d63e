"""Commands of a channel: methods of the host, the compute class and the copy class, as words.

NVIDIA/open-gpu-doc, classes/host/clc56f.h, clc86f.h; classes/compute/clcbc0.h; classes/dma-copy/
clc8b5.h. What is used here has the same numbers from Ampere to Blackwell.
"""

from __future__ import annotations

from typing import Final

from tiny_hcq import Number, halves

__all__ = [
    "COMPUTE",
    "COPY",
    "INVALIDATE",
    "LARGEST_COPY",
    "copy",
    "copy_release",
    "interrupt",
    "launch_inline",
    "length_of",
    "local_memory",
    "method",
    "release",
    "release_time",
    "schedule",
    "set_object",
    "wait_at_least",
    "wait_for_idle",
    "windows",
]

COMPUTE, COPY = 1, 4
"""Subchannels."""
SHORT_DESCRIPTOR: Final = 256
"""Bytes of the descriptors before Hopper's."""
LARGEST_COPY: Final = 2 << 30
"""Bytes of one copy."""

_INCREMENTING: Final = 1
_OPERATION_SHIFT, _COUNT_SHIFT, _COUNT_MASK, _SUBCHANNEL_SHIFT = 29, 16, 0x1FFF, 13

# Methods of the host.
_SET_OBJECT, _INTERRUPT, _SEMAPHORE, _HOST_WAIT = 0x00, 0x20, 0x5C, 0x78
_ALL_ENGINES: Final = 1
_ACQUIRE_AT_LEAST: Final = 3
_RELEASE: Final = 1
_WHEN_IDLE, _LONG, _WITH_TIME = 1 << 20, 1 << 24, 1 << 25

# Methods of compute.
_WAIT_FOR_IDLE: Final = 0x110
_SHARED_WINDOW: Final = 0x2A0
_INVALIDATE_DESCRIPTORS: Final = 0x298
_SEND_PCAS: Final = 0x2B4
_SEND_SIGNALING_PCAS: Final = 0x2C0
_PREFETCH_SCHEDULE: Final = 9
_INLINE_DESCRIPTOR: Final = 0x318
_INLINE_WORDS: Final = 0x320
_LONG_DESCRIPTOR: Final = 1 << 30
"""An inline descriptor of 384 bytes, not 256."""
_LOCAL_BYTES: Final = 0x2E4
_LOCAL_ADDRESS: Final = 0x790
_LOCAL_WINDOW: Final = 0x7B0
_INVALIDATE_CACHES: Final = 0x1698
_MOST_UNITS: Final = 0xFF

# Methods of copies.
_COPY_SEMAPHORE: Final = 0x240
_LAUNCH: Final = 0x300
_ADDRESSES: Final = 0x400
_LINE_LENGTH: Final = 0x418
_COPY_LINE: Final = 0x182
"""Not pipelined, both sides in lines."""
_FLUSH, _ONE_WORD, _FOUR_WORDS, _LONG_PAYLOAD = 1 << 2, 1 << 3, 2 << 3, 1 << 27

Words = tuple[Number, ...]


def header(subchannel: int, first: int, count: int) -> int:
    """The word before `count` values of methods that follow each other."""
    return (
        _INCREMENTING << _OPERATION_SHIFT
        | count << _COUNT_SHIFT
        | subchannel << _SUBCHANNEL_SHIFT
        | first >> 2
    )


def method(subchannel: int, first: int, *values: Number) -> Words:
    """Values of methods that follow each other."""
    return (header(subchannel, first, len(values)), *values)


def length_of(word: int) -> int:
    """Words of the command that begins with a header."""
    return 1 + (word >> _COUNT_SHIFT & _COUNT_MASK)


def upper_first(number: Number) -> Words:
    """The high and the low 32 bits, as most methods take addresses."""
    low, high = halves(number)
    return high, low


def set_object(subchannel: int, number: int) -> Words:
    """Have a class behind a subchannel."""
    return method(subchannel, _SET_OBJECT, number)


# --- semaphores


def semaphore(address: Number, value: Number, operation: int) -> Words:
    """A semaphore of the host."""
    return method(0, _SEMAPHORE, *halves(address), *halves(value), operation | _LONG)


def wait_at_least(address: Number, value: Number) -> Words:
    """Go on when the value is reached."""
    return semaphore(address, value, _ACQUIRE_AT_LEAST)


def release(address: Number, value: Number) -> Words:
    """Set a value when all before is done."""
    return semaphore(address, value, _RELEASE | _WHEN_IDLE)


def release_time(address: Number) -> Words:
    """Note the time when all before is done; the value becomes 0."""
    return semaphore(address, 0, _RELEASE | _WHEN_IDLE | _WITH_TIME)


def interrupt() -> Words:
    """Wake who sleeps, when all engines of the channel are idle: the host alone does not wait."""
    return (*method(0, _HOST_WAIT, _ALL_ENGINES), *method(0, _INTERRUPT, 0))


# --- compute


def windows(local: int, shared: int) -> Words:
    """Windows of local and of shared memory in the address space of kernels."""
    return (
        *method(COMPUTE, _LOCAL_WINDOW, *upper_first(local)),
        *method(COMPUTE, _SHARED_WINDOW, *upper_first(shared)),
    )


def local_memory(address: int, bytes_per_tpc: int) -> Words:
    """The memory that threads spill to."""
    return (
        *method(COMPUTE, _LOCAL_ADDRESS, *upper_first(address)),
        *method(COMPUTE, _LOCAL_BYTES, *upper_first(bytes_per_tpc), _MOST_UNITS),
    )


def wait_for_idle() -> Words:
    """Go on when all kernels before have ended."""
    return method(COMPUTE, _WAIT_FOR_IDLE, 0)


INVALIDATE: Final = method(COMPUTE, _INVALIDATE_CACHES, 0x1011)
"""Instructions, data and constants of multiprocessors' caches, without waiting."""


def schedule(descriptor: int) -> Words:
    """Launch what a descriptor in memory says, as it is now."""
    return (
        *method(COMPUTE, _INVALIDATE_DESCRIPTORS, 0),
        *method(COMPUTE, _SEND_PCAS, descriptor >> 8),
        *method(COMPUTE, _SEND_SIGNALING_PCAS, _PREFETCH_SCHEDULE),
    )


def launch_inline(descriptor: int, size_bytes: int) -> Words:
    """Put a descriptor of so many bytes, the words at the end, to an address, and launch it."""
    unit = descriptor >> 8
    form = _LONG_DESCRIPTOR if size_bytes > SHORT_DESCRIPTOR else 0
    words = (0,) * (size_bytes // 4)
    return (
        *method(COMPUTE, _INVALIDATE_DESCRIPTORS, 0),
        *method(COMPUTE, _INLINE_DESCRIPTOR, unit >> 32 | form, unit & 0xFFFFFFFF),
        *method(COMPUTE, _INLINE_WORDS, *words),
    )


# --- copies


def copy(dst: Number, src: Number, size: int) -> Words:
    """Copy bytes."""
    words: list[Number] = []
    for start in range(0, size, LARGEST_COPY):
        piece = min(LARGEST_COPY, size - start)
        places = (*upper_first(src + start), *upper_first(dst + start))
        words += method(COPY, _ADDRESSES, *places)
        words += method(COPY, _LINE_LENGTH, piece)
        words += method(COPY, _LAUNCH, _COPY_LINE)
    return tuple(words)


def copy_release(address: Number, value: Number, *, timed: bool = False) -> Words:
    """Set a value, or note the time, when all copies before are done."""
    low, high = halves(value)
    kind = _FOUR_WORDS if timed else _ONE_WORD
    return (
        *method(COPY, _COPY_SEMAPHORE, *upper_first(address), low, high),
        *method(COPY, _LAUNCH, kind | _FLUSH | _LONG_PAYLOAD),
    )
