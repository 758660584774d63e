"""Everything tinycore promises of a device, run on CUDA: see `tinycore conformance --help`."""

from __future__ import annotations

import weakref

from tiny_testing.suite import *  # noqa: F403  the suite is the point
from tiny_testing.suite.judge import Skips
from tinycore import Device

DEVICE = "CUDA"
SKIPS = Skips()


class Memory:
    """Memory of the card that is given back with this."""

    def __init__(self, content: bytes) -> None:
        runtime = Device["CUDA"].runtime
        allocator = runtime.allocator
        self.address = allocator.alloc(max(len(content), 1))
        allocator.write(self.address, memoryview(content))
        runtime.synchronize()
        weakref.finalize(self, allocator.free, self.address)


def external_memory(content: bytes) -> tuple[int, object]:
    """Memory of the device that tinycore did not allocate, and what keeps it alive."""
    memory = Memory(content)
    return memory.address, memory
