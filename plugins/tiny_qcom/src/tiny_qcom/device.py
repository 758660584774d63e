"""An open Adreno, driven through KGSL: a context, a queue of PM4, memory shared with the host."""

from __future__ import annotations

from typing import Final

from tiny_hcq import ArgumentArena, HCQCompiled, HCQSignal
from tiny_qcom.chip import TICKS_PER_SECOND, chip_of_id
from tiny_qcom.kgsl import Kgsl, LinuxSystem, System
from tiny_qcom.memory import QcomAllocator
from tiny_qcom.program import QcomProgram
from tiny_qcom.queue import RING_BYTES, QcomQueue
from tiny_qcom.settings import settings
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import ProgramInfo

__all__ = ["QcomDevice"]

PAGE: Final = 4096
BORDER_BYTES: Final = 128
EAGER_SECONDS: Final = 5e-4
"""Polling time of a wait before it sleeps in the kernel."""
SLEEP_MS: Final = 5


class QcomDevice(HCQCompiled):
    """The one Adreno of a machine."""

    ticks_per_second = TICKS_PER_SECOND
    allocator: QcomAllocator

    def __init__(
        self,
        index: int = 0,
        interface: str = "",
        *,
        system: System | None = None,
        priority: int | None = None,
        ring_bytes: int = RING_BYTES,
        argument_bytes: int = 4 << 20,
    ) -> None:
        if index:
            raise DeviceUnavailable(f"there is no QCOM:{index}; KGSL has one device, QCOM")
        wanted = settings.QCOM_PRIORITY if priority is None else priority
        self.kgsl = Kgsl(system or LinuxSystem(), wanted)
        try:
            self.chip = chip_of_id(self.kgsl.chip_id)
            self.arch = self.chip.name
            allocator = QcomAllocator(self.kgsl)
            allocator.device = self
            super().__init__(
                "QCOM", allocator, lambda: QcomQueue(self), argument_bytes=argument_bytes
            )
            self._page = self.own(allocator.alloc_visible(PAGE))
            assert self._page.view is not None
            self._page.view[:] = bytes(PAGE)
            self.commands = ArgumentArena(
                self,
                ring_bytes,
                purpose="submission with {} bytes of commands",
                within_submission=True,
            )
            self.own(self.commands.memory)
        except BaseException:
            self.kgsl.close()
            raise
        self.kgsl.want_power()

    @property
    def border_color(self) -> int:
        """Address of the border color of images: zeros."""
        return self._page.address

    @property
    def scratch_word(self) -> int:
        """A word that anything may be written to."""
        return self._page.address + PAGE - BORDER_BYTES

    def load(self, binary: bytes, info: ProgramInfo) -> QcomProgram:
        """Make what a compiler made ready to launch."""
        with self.lock:
            return QcomProgram(self, binary, info)

    def private_sizes(self, per_thread: int) -> tuple[int, int]:
        """Private memory of a thread and of a shader processor."""
        if not per_thread:
            return 0, 0
        thread, core = self.chip.private_bytes(per_thread)
        return thread, -(-core // PAGE) * PAGE

    def scratch_size(self, bytes_per_thread: int) -> int:
        """Private memory for all threads that can run at once."""
        return self.private_sizes(bytes_per_thread)[1] * self.chip.cores

    def fault(self) -> str:
        """Fault reported by KGSL; "" without one."""
        return self.kgsl.fault

    def sleep(self, signal: HCQSignal, value: int, waited_seconds: float) -> None:
        """Wait for the last submission in the kernel, a few milliseconds at most."""
        if waited_seconds < EAGER_SECONDS:
            super().sleep(signal, value, waited_seconds)
            return
        self.kgsl.wait(self.kgsl.last, SLEEP_MS)
        if signal.value < value:
            super().sleep(signal, value, waited_seconds)

    def release(self) -> None:
        """Give the device file back."""
        self.kgsl.close()
