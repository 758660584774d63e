"""An open card, driven without libcuda, and the toolchains that make its programs."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Final

from tiny_hcq import ArgumentArena, HCQCompiled, HCQSignal
from tiny_nv.arch import arch_of, limits_of
from tiny_nv.device import DEFAULT_ARCH
from tiny_nv.nvk import methods
from tiny_nv.nvk.addresses import LOCAL_WINDOW, SHARED_WINDOW
from tiny_nv.nvk.card import Card, driver_of_process
from tiny_nv.nvk.channel import ChannelGroup
from tiny_nv.nvk.compilers import CubinCompiler, CubinOfPtxCompiler
from tiny_nv.nvk.events import InterruptEvent
from tiny_nv.nvk.faults import Faults
from tiny_nv.nvk.local_memory import bytes_of_thread, bytes_of_tpc, total_bytes
from tiny_nv.nvk.memory import NvAllocator
from tiny_nv.nvk.options import chosen_options
from tiny_nv.nvk.program import NvProgram
from tiny_nv.nvk.protocols import OpenCard
from tiny_nv.nvk.queues import ComputeQueue, CopyQueue
from tiny_nv.pci.bring_up import open_card
from tiny_nv.ptx import Ptx
from tiny_nv.render import CudaC
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import ProgramInfo, Toolchain

__all__ = ["NvDevice", "ptx_toolchain", "toolchain"]

NVK, PCI = "NVK", "PCI"
"""Interfaces."""
COMMAND_BYTES: Final = 1 << 20
"""Memory for commands of submissions, of each channel."""
_REST_SECONDS: Final = 1e-3
_EAGER_SECONDS: Final = 2e-4
"""Time of busy waiting before waits sleep."""
_LONGEST_SLEEP_MS: Final = 5
"""Limit of a sleep, after which faults are looked for."""


def toolchain(arch: str = "") -> Toolchain[CudaC]:
    """CUDA C compiled by nvrtc to a cubin. Raises CompilerUnavailable."""
    name = arch or DEFAULT_ARCH
    return Toolchain("NVRTC", name, CudaC(limits_of(arch_of(name))), CubinCompiler(name))


def ptx_toolchain(arch: str = "") -> Toolchain[Ptx]:
    """PTX of our own assembled by ptxas. Raises CompilerUnavailable."""
    name = arch or DEFAULT_ARCH
    renderer = Ptx(limits_of(arch_of(name)), arch=name)
    return Toolchain("PTX", name, renderer, CubinOfPtxCompiler(name))


class NvDevice(HCQCompiled):
    """A card: a channel that computes, a channel that copies, and what both report."""

    allocator: NvAllocator

    def __init__(self, index: int = 0, interface: str = "") -> None:
        verify_interface(interface)
        self.options = chosen_options()
        with ExitStack() as undo:
            self.card, peers = self._card(index, interface)
            undo.callback(self.card.close)
            self.arch = self.card.arch
            self.group = group = ChannelGroup(self.card, self.options.copy_engine)
            undo.callback(group.close)
            units = self.card.units
            sms = units.gpcs * units.tpcs_per_gpc * units.sms_per_tpc
            self.event: InterruptEvent | None = None
            if self.options.sleeps:
                if not isinstance(self.card, Card):
                    raise DeviceUnavailable("NV_SLEEP needs NVIDIA's kernel driver: use DEV=NV")
                self.event = InterruptEvent(self.card)
                undo.callback(self.event.close)
            self.faults = Faults(group, self.kernel_at, sms)
            allocator = NvAllocator(self.card)
            allocator.device = self
            name = f"NV:{index}" if index else "NV"
            super().__init__(
                name,
                allocator,
                partial(ComputeQueue, self, group.compute),
                partial(CopyQueue, self, group.copies),
                peer_group=peers,
            )
            self.commands = {
                channel: ArgumentArena(
                    self,
                    COMMAND_BYTES,
                    purpose="submission with {} bytes of commands",
                    within_submission=True,
                )
                for channel in (group.compute, group.copies)
            }
            for arena in self.commands.values():
                self.own(arena.memory)
            self._begin()
            self._opened = undo.pop_all()

    def _card(self, index: int, interface: str) -> tuple[OpenCard, str]:
        """The card, and the name of those that see each other's memory."""
        if interface == PCI:
            found = open_card(index)
            return found, f"PCI {id(found)}"
        driver = driver_of_process()
        infos = driver.infos()
        if index >= len(infos):
            names = ", ".join(f"NV:{i} at {info.bus}" for i, info in enumerate(infos)) or "none"
            raise DeviceUnavailable(f"there is no NV:{index}; there are: {names}")
        peers = f"NVK {id(driver)}"
        is_one = driver.mapping.has_peers
        return driver.open(infos[index]), peers if is_one else f"{peers} {index}"

    def _begin(self) -> None:
        """Put classes behind subchannels, and say where the windows are."""
        group = self.group
        compute = self.compute_queue()
        compute.append(*methods.set_object(methods.COMPUTE, self.card.generation.compute))
        compute.append(*methods.windows(LOCAL_WINDOW, SHARED_WINDOW))
        copies = CopyQueue(self, group.copies)
        copies.append(*methods.set_object(methods.COPY, self.card.copy_class))
        for queue in (compute, copies):
            with self.lock:
                queue.wait(self.timeline_signal, self.timeline_value - 1)
                self.finish(queue)
        self.synchronize()

    # --- programs

    def load(self, binary: bytes, info: ProgramInfo) -> NvProgram:
        """Put a cubin into memory. Raises FileFormatError and DeviceError for one that cannot run
        here.
        """
        return NvProgram(self, binary, info)

    def kernel_at(self, address: int) -> str:
        """The kernel whose code is at an address, in words."""
        program = self.program_at(address)
        return f"kernel {program.info.name}" if program is not None else "code that is not known"

    def local_bytes_of(self, stack_bytes: int) -> int:
        """Local memory of a thread with such a stack."""
        return bytes_of_thread(stack_bytes)

    def scratch_size(self, bytes_per_thread: int) -> int:
        """Local memory for kernels with such a stack."""
        return total_bytes(self.card.units, self._bytes_of_tpc(bytes_per_thread))

    def need_scratch(self, bytes_per_thread: int) -> None:
        """Have local memory for a kernel with such a stack, and tell the card where."""
        before = self.scratch
        super().need_scratch(bytes_per_thread)
        if self.scratch is before or self.scratch is None:
            return
        queue = self.compute_queue()
        queue.wait(self.timeline_signal, self.timeline_value - 1)
        queue.append(*methods.wait_for_idle())
        per_tpc = self._bytes_of_tpc(bytes_per_thread)
        queue.append(*methods.local_memory(self.scratch.address, per_tpc))
        self.finish(queue)

    def _bytes_of_tpc(self, stack_bytes: int) -> int:
        return bytes_of_tpc(self.card.units, bytes_of_thread(stack_bytes))

    # --- waiting

    def sleep(self, signal: HCQSignal, value: int, waited_seconds: float) -> None:
        """Wait for a signal, for a short time: by the card's interrupt, where waits sleep."""
        if self.event is None or waited_seconds < _EAGER_SECONDS:
            super().sleep(signal, value, waited_seconds)
        else:
            self.event.wait(_LONGEST_SLEEP_MS)

    def rest(self) -> None:
        """Let others run while there is no room."""
        self.sleep(self.timeline_signal, self.timeline_value, _REST_SECONDS)

    def fault(self) -> str:
        """Fault reported for the channels; "" without one."""
        return self.faults.poll()

    def state(self) -> str:
        """State of the timeline, reported faults, and pointers of the channels."""
        channels = (self.group.compute, self.group.copies)
        where = ", ".join(channel.state() for channel in channels)
        return f"{super().state()}; {where}"

    # --- the end

    def release(self) -> None:
        """Give the channels back. The process keeps its files of the driver until it ends."""
        self._opened.close()


def verify_interface(name: str) -> None:
    """Raise DeviceUnavailable for an interface that there is not."""
    if name not in ("", NVK, PCI):
        raise DeviceUnavailable(
            f"NV has no interface {name!r}: there are DEV=NVK+NV, over NVIDIA's kernel driver, and "
            "DEV=PCI+NV, without it"
        )
