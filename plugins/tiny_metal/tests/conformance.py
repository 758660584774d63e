"""Everything tinycore promises of a device, run on METAL: see `tinycore conformance --help`."""

from __future__ import annotations

import weakref
from typing import Any

from tiny_testing.suite import *  # noqa: F403  the suite is the point
from tiny_testing.suite.judge import Skips
from tinycore import Device

DEVICE = "METAL"
SKIPS = Skips(float64="no GPU of Apple computes float64")


class Memory:
    """An MTLBuffer that is given back with this."""

    def __init__(self, content: bytes) -> None:
        runtime: Any = Device["METAL"].runtime
        allocator = runtime.allocator
        handle = allocator.alloc(max(len(content), 1))
        allocator.write(handle, memoryview(content))
        runtime.synchronize()
        self.address, _ = runtime.address(handle)
        weakref.finalize(self, allocator.free, handle)


def external_memory(content: bytes) -> tuple[int, object]:
    """Memory of the device that tinycore did not allocate, and what keeps it alive."""
    memory = Memory(content)
    return memory.address, memory
