"""Calls of NVIDIA's driver of unified memory, nvidia-uvm: who maps what where, for cards.

Addresses are this process's to choose: a range is made at one, and memory of the resource manager
is mapped into it, for each card that is to see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tiny_hcq import errno_text
from tiny_nv.nvk.classes import STATUSES, Uvm
from tiny_nv.nvk.layouts import Record
from tiny_nv.nvk.rm import Refused, ResourceManager
from tinycore.errors import OutOfMemory

__all__ = ["UVM_NODE", "UnifiedMemory"]

UVM_NODE: Final = "/dev/nvidia-uvm"
WITHOUT_HMM: Final = 1
"""No pages of the process by themselves: addresses of ranges are free of the process's own."""
READ_WRITE_ATOMIC: Final = 1
_UVM_NO_MEMORY: Final = 0x51


class UnifiedMemory:
    """nvidia-uvm as this process uses it. Raises OSError, and Refused."""

    def __init__(self, rm: ResourceManager) -> None:
        self.rm, self.machine = rm, rm.machine
        self.file = self.machine.open(UVM_NODE)
        self._second = -1
        try:
            self.call(Uvm.INITIALIZE, rm.record("uvm_initialize", flags=WITHOUT_HMM))
            self._initialize_pages()
        except BaseException:
            self.close()
            raise

    def _initialize_pages(self) -> None:
        """Tie unified memory to the process's address space, where the driver wants that."""
        with suppress(OSError, Refused):
            self._second = self.machine.open(UVM_NODE)
            record = self.rm.record("uvm_mm_initialize", uvmFd=self.file)
            self.call(Uvm.MM_INITIALIZE, record, file=self._second)

    def call(self, number: Uvm, record: Record, what: str = "", file: int = -1) -> None:
        """Make a request. Raises OutOfMemory, and Refused with the status."""
        failed = self.machine.ioctl(self.file if file < 0 else file, number, record.address)
        text = f"UVM_{number.name}{f' for {what}' if what else ''}"
        if failed:
            raise Refused(f"{text} returned {errno_text(failed)}", -failed)
        status = record.number("rmStatus")
        if not status:
            return
        name = f"{STATUSES.get(status, 'status')} ({status:#x})"
        if status == _UVM_NO_MEMORY:
            raise OutOfMemory(f"{text} returned {name}. Free tensors.")
        raise Refused(f"{text} returned {name}", status)

    # --- cards

    def register_gpu(self, uuid: bytes) -> None:
        """Let a card be mapped to."""
        record = self.rm.record("uvm_register_gpu", uuid=uuid, rmCtrlFd=-1)
        self.call(Uvm.REGISTER_GPU, record)

    def register_va_space(self, uuid: bytes, va_space: int) -> None:
        """Manage the page tables of a card's address space from now on."""
        rm = self.rm
        record = rm.record(
            "uvm_register_gpu_vaspace",
            uuid=uuid,
            rmCtrlFd=rm.file,
            hClient=rm.root,
            hVaSpace=va_space,
        )
        self.call(Uvm.REGISTER_GPU_VASPACE, record)

    def unregister(self, uuid: bytes) -> None:
        """Take both back."""
        record = self.rm.record("uvm_unregister_gpu", uuid=uuid)
        self.call(Uvm.UNREGISTER_GPU_VASPACE, record)
        self.call(Uvm.UNREGISTER_GPU, record)

    def register_channel(self, uuid: bytes, channel: int, base: int, length: int) -> None:
        """Have the contexts of a channel mapped, at addresses kept for that."""
        rm = self.rm
        record = rm.record(
            "uvm_register_channel",
            uuid=uuid,
            rmCtrlFd=rm.file,
            hClient=rm.root,
            hChannel=channel,
            base=base,
            length=length,
        )
        self.call(Uvm.REGISTER_CHANNEL, record)

    def unregister_channel(self, uuid: bytes, channel: int) -> None:
        """Take `register_channel` back."""
        record = self.rm.record("uvm_unregister_channel", hClient=self.rm.root, hChannel=channel)
        if "uuid" in self.rm.layouts["uvm_unregister_channel"].fields:
            record.put("uuid", uuid)
        self.call(Uvm.UNREGISTER_CHANNEL, record)

    def enable_peer(self, first: bytes, second: bytes) -> None:
        """Let two cards address each other's memory."""
        record = self.rm.record("uvm_enable_peer", uuidA=first, uuidB=second)
        self.call(Uvm.ENABLE_PEER_ACCESS, record)

    # --- ranges

    def create_range(self, base: int, size: int) -> None:
        """Take addresses."""
        record = self.rm.record("uvm_create_external_range", base=base, length=size)
        self.call(Uvm.CREATE_EXTERNAL_RANGE, record, f"{size:,} bytes at {base:#x}")

    def map(self, base: int, size: int, memory: int, uuids: Sequence[bytes]) -> None:
        """Map memory into a range, for cards."""
        rm = self.rm
        record = rm.record(
            "uvm_map_external",
            base=base,
            length=size,
            count=len(uuids),
            rmCtrlFd=rm.file,
            hClient=rm.root,
            hMemory=memory,
        )
        for index, uuid in enumerate(uuids):
            mapping = rm.record("uvm_mapping", uuid=uuid, mappingType=READ_WRITE_ATOMIC)
            record.put("attributes", bytes(mapping.data), index)
        self.call(Uvm.MAP_EXTERNAL_ALLOCATION, record, f"{size:,} bytes at {base:#x}")

    def unmap(self, base: int, size: int, uuid: bytes) -> None:
        """Take memory away from one card."""
        record = self.rm.record("uvm_unmap_external", base=base, length=size, uuid=uuid)
        self.call(Uvm.UNMAP_EXTERNAL, record, f"{size:,} bytes at {base:#x}")

    def free(self, base: int, size: int) -> None:
        """Give a range back, with all that is mapped into it."""
        record = self.rm.record("uvm_free", base=base)
        if "length" in self.rm.layouts["uvm_free"].fields:
            record.put("length", size)
        self.call(Uvm.FREE, record, f"{size:,} bytes at {base:#x}")

    def close(self) -> None:
        """Close the files."""
        for file in (self._second, self.file):
            if file >= 0:
                self.machine.close(file)
