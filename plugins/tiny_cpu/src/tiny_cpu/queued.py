"""The CPU through command queues: the interface HCQ, chosen by DEV=HCQ+CPU.

Two native threads execute commands, one kernels and one copies; kernels share their iterations with
the pool. The direct interface is faster, as a call needs no second thread. This one is for programs
that should go on while kernels run, and it shows on any machine that what drives queues is right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tiny_cpu.memory import CpuAllocator
from tiny_cpu.program import CpuProgram
from tiny_cpu.queue import CpuQueue, Worker, wait_a_little
from tiny_hcq import HCQAllocator, HCQBuffer, HCQCompiled, HCQProgram, HCQSignal
from tinycore.plugin import ProgramInfo

__all__ = ["QueuedAllocator", "QueuedCpu", "QueuedProgram"]


class QueuedAllocator(HCQAllocator):
    """Host memory, which everyone sees."""

    device: QueuedCpu

    def __init__(self) -> None:
        super().__init__(staging_buffers=0)  # a second copy would take longer than to wait
        self._memory = CpuAllocator()

    def allocate(self, size: int, visible: bool) -> HCQBuffer:
        """`size` bytes. Raises OutOfMemory."""
        block = self._memory.alloc(size)
        return HCQBuffer(block.address, size, self.device, view=block.view(), meta=block)

    def release(self, buffer: HCQBuffer) -> None:
        """Let go of a block; it is given back once no view of it is left, and no kernel uses it."""
        self.device.hold(buffer.meta)
        buffer.meta = buffer.view = None
        buffer.address = -1  # a launch that still names it fails in Python, instead of crashing

    def wrap(self, pointer: int, size: int) -> HCQBuffer:
        """Memory that somebody else owns, and keeps until the handle is gone."""
        block = self._memory.wrap(pointer, size)
        return HCQBuffer(pointer, size, self.device, view=block.view(), meta=block, external=True)


class QueuedProgram(HCQProgram):
    """A kernel, launched by the thread of a queue."""

    def __init__(self, device: QueuedCpu, binary: bytes, info: ProgramInfo) -> None:
        # Queues count groups: what threads share are those of the first axis.
        extents = (info.parallel_extent, None, None) if info.parallel_extent else ()
        super().__init__(device, replace(info, grid=(info.parallel, 1, 1), grid_extents=extents))
        self.program = CpuProgram(binary, info)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        launched = None if is_finalizing() else getattr(self, "last_launch", None)
        if launched is not None:
            self.device.keep(self.program, (launched,))  # a thread may still be in its code


class QueuedCpu(HCQCompiled):
    """An open CPU whose work is done by two threads of queues."""

    allocator: QueuedAllocator

    def __init__(self, index: int = 0) -> None:
        name = f"CPU:{index}" if index else "CPU"
        self.held: list[object] = []
        """Memory that a kernel of this device, which is lost, may still use."""
        self.workers = [Worker(f"the {kind} queue of {name}") for kind in ("compute", "copy")]
        allocator = QueuedAllocator()
        allocator.device = self
        compute, copies = (partial(CpuQueue, worker) for worker in self.workers)
        super().__init__(name, allocator, compute, copies, peer_group="CPU")

    def load(self, binary: bytes, info: ProgramInfo) -> QueuedProgram:
        """Make an object file callable. Raises DeviceError when it is for another machine."""
        return QueuedProgram(self, binary, info)

    def sleep(self, signal: HCQSignal, value: int, waited_seconds: float) -> None:
        """Wait in native code, for a short time."""
        wait_a_little(signal.address, value, waited_seconds > 1e-4)

    def hold(self, memory: object) -> None:
        """Keep memory until the threads have ended, if they may be in a kernel that nobody awaits:
        it is memory of this process, which would be used for something else.
        """
        if self.error_state is not None and any(worker.is_running for worker in self.workers):
            self.held.append(memory)

    def close(self) -> None:
        """Wait, then release everything: if lost, when the threads have ended their kernels."""
        if self.error_state is not None and not self.is_inherited:
            self.release()
        super().close()

    def release(self) -> None:
        """End the threads."""
        for worker in self.workers:
            worker.stop()
        self.held.clear()
