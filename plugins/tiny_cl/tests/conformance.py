"""Everything tinycore promises of a device, run on CL: `tinycore conformance CL --suite FILE`."""

from __future__ import annotations

import weakref

from tiny_cl._lib import create, ffi, library
from tiny_testing.suite import *  # noqa: F403  the suite is the point
from tiny_testing.suite.judge import Skips
from tinycore import Device

DEVICE = "CL"
SKIPS = Skips(
    peer_copy="two devices share no context, so their buffers are strangers: copies pass the host",
    queues="two devices share no context, so one cannot wait for the events of the other",
)

READ_WRITE, COPY_HOST_POINTER = 1, 32


class Memory:
    """A cl_mem that is released with this."""

    def __init__(self, content: bytes) -> None:
        context = ffi.cast("cl_context", Device["CL"].runtime.context_address)  # type: ignore[attr-defined]
        flags = READ_WRITE | COPY_HOST_POINTER
        made = create("clCreateBuffer", context, flags, len(content), ffi.from_buffer(content))
        self.address = int(ffi.cast("uintptr_t", made))
        weakref.finalize(self, library().clReleaseMemObject, made)


def external_memory(content: bytes) -> tuple[int, object]:
    """Memory of the device that tinycore did not allocate, and what keeps it alive."""
    memory = Memory(content)
    return memory.address, memory
