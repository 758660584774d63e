"""Devices with queues in the tests of their drivers: opened and closed, memory written and read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy

from tiny_hcq import HCQBuffer, HCQCompiled
from tinycore import Context

__all__ = ["closing", "content", "written"]

Opened = TypeVar("Opened", bound=HCQCompiled)


@contextmanager
def closing(
    opened: Callable[..., Opened], timeout_ms: int = 2000
) -> Iterator[Callable[..., Opened]]:
    """A function that opens devices as `opened` does; they are closed at the end."""
    made: list[Opened] = []

    def device(*arguments: Any, **options: Any) -> Opened:
        made.append(opened(*arguments, **options))
        return made[-1]

    yield device
    with Context(WAIT_TIMEOUT_MS=timeout_ms):
        for one in made:
            one.close()


def written(device: HCQCompiled, numbers: Any) -> HCQBuffer:
    """Memory of a device with these numbers, each in 4 bytes."""
    content = numpy.asarray(numbers, "i")
    buffer = device.allocator.alloc(content.nbytes)
    device.allocator.write(buffer, memoryview(content.tobytes()))
    return buffer


def content(device: HCQCompiled, buffer: HCQBuffer) -> Any:
    """The numbers of 4 bytes that memory of a device holds."""
    found = bytearray(buffer.size)
    device.allocator.read(memoryview(found), buffer)
    return numpy.frombuffer(found, "i")
