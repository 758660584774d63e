"""Performance: what a device does per second. Told, not judged.

Each case returns a text with its figure, for the report.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy

from tiny_testing.suite.case import Level, case
from tiny_testing.suite.order import step
from tiny_testing.suite.subject import Subject
from tinycore import Tensor, TinyJit
from tinycore.dtype import dtypes

__all__ = [
    "test_speed_of_a_launch",
    "test_speed_of_a_matrix_product",
    "test_speed_of_a_sum",
    "test_speed_of_copies",
    "test_speed_of_reading_and_writing",
]

ROUNDS: Final = 5
COPIED_BYTES: Final = 32 << 20
SIDE: Final = 512
LONG_SECONDS: Final = 2.0


def least_seconds(subject: Subject, work: Callable[[], object], repeat: int = 1) -> float:
    """The least time of a few rounds, each waited for; fewer where a round takes long."""
    work()
    subject.device.synchronize()
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(repeat):
            work()
        subject.device.synchronize()
        seconds = time.perf_counter() - began
        best = min(best, seconds / repeat)
        if seconds > LONG_SECONDS:
            break
    return best


@case(Level.PERFORMANCE)
def test_speed_of_a_launch(subject: Subject) -> str:
    """The time from launch to launch of a tiny program."""
    program = step(subject, lambda x: x + 1, 16)
    with subject.memory(64) as a, subject.memory(64) as b:
        seconds = least_seconds(subject, lambda: program([b, a], []), repeat=200)
    return f"{seconds * 1e6:.1f} us a launch"


@case(Level.PERFORMANCE)
def test_speed_of_copies(subject: Subject) -> str:
    """Copies from the host and to it."""
    host = bytearray(COPIED_BYTES)
    with subject.memory(COPIED_BYTES) as block:
        there = least_seconds(subject, lambda: subject.allocator.write(block, memoryview(host)))
        back = least_seconds(subject, lambda: subject.allocator.read(memoryview(host), block))
    to_device, to_host = (COPIED_BYTES / seconds / 1e9 for seconds in (there, back))
    return f"{to_device:.2f} GB/s to the device, {to_host:.2f} GB/s back"


def replayed(function: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], object]:
    """A captured step on some inputs."""
    captured = TinyJit(function)
    for _ in range(3):
        captured(*inputs)
    return lambda: captured(*inputs)


@case(Level.PERFORMANCE)
def test_speed_of_reading_and_writing(subject: Subject) -> str:
    """Elementwise work that is limited by memory."""
    x = subject.tensor(numpy.ones(COPIED_BYTES // 8), dtypes.float32)
    seconds = least_seconds(subject, replayed(lambda x: (x * 2 + 1).realize(), x))
    return f"{COPIED_BYTES / seconds / 1e9:.2f} GB/s read and written"


@case(Level.PERFORMANCE)
def test_speed_of_a_sum(subject: Subject) -> str:
    """A sum over all elements."""
    x = subject.tensor(numpy.ones(COPIED_BYTES // 8), dtypes.float32)
    seconds = least_seconds(subject, replayed(lambda x: x.sum().realize(), x))
    return f"{COPIED_BYTES / 2 / seconds / 1e9:.2f} GB/s read"


@case(Level.PERFORMANCE)
def test_speed_of_a_matrix_product(subject: Subject) -> str:
    """A product of two square matrices of float32."""
    a = subject.tensor(numpy.ones((SIDE, SIDE)), dtypes.float32)
    seconds = least_seconds(subject, replayed(lambda a: (a @ a).realize(), a))
    return f"{2 * SIDE**3 / seconds / 1e9:.2f} GFLOP/s in a product of {SIDE} x {SIDE}"
