"""Kernels in a card's memory, and what a launch must say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tiny_amd.code import CodeObject
from tiny_amd.scratch import Scratch, temporary_ring
from tinycore.errors import DeviceError
from tinycore.plugin import HCQBuffer, HCQProgram, ProgramInfo

if TYPE_CHECKING:
    from tiny_amd.device import AmdDevice

__all__ = ["AmdProgram", "split"]

_KERNARG_POINTER: Final = 3
_UNSUPPORTED: Final = {
    0: "the address of scratch as a buffer",
    1: "the packet that launched it",
    2: "its queue",
    4: "the number of the launch",
    5: "the address of scratch",
    6: "the size of scratch",
}
"""Bits of a descriptor's properties: what a kernel may ask to find in its first registers."""
_WAVES_OF_32: Final = 10
_SHARED_UNIT: Final = 512
_SHARED_SHIFT: Final = 15


def split(number: int) -> tuple[int, int]:
    """The low and the high 32 bits."""
    return number & 0xFFFFFFFF, number >> 32


class AmdProgram(HCQProgram):
    """A kernel in memory."""

    def __init__(self, device: AmdDevice, binary: bytes, info: ProgramInfo) -> None:
        self.card = device
        code = CodeObject(binary, info.name)
        self.memory: HCQBuffer = device.own_memory(code.size)
        placed = code.place(self.memory.address)
        found = code.descriptor(placed)
        self.verify(info.name, found.properties)
        device.allocator.write(self.memory, memoryview(placed))
        self.descriptor_address = self.memory.address + code.descriptor_offset
        self.entry = self.descriptor_address + found.entry
        self.has_arguments = bool(found.properties >> _KERNARG_POINTER & 1)
        self.shared_bytes = found.shared_bytes
        self.private_bytes = found.private_bytes
        self.rsrc1, self.rsrc3 = found.rsrc1, found.rsrc3
        self.rsrc2 = found.rsrc2 | -(-found.shared_bytes // _SHARED_UNIT) << _SHARED_SHIFT
        device.prepare_scratch(found.private_bytes)
        super().__init__(device, info, argument_bytes=found.kernarg_bytes)

    def __del__(self) -> None:
        super().__del__()
        if hasattr(self, "memory"):
            self.card.give_back(self.memory)

    def verify(self, name: str, properties: int) -> None:
        """Raise DeviceError for a kernel that needs what is not given here."""
        wanted = [text for bit, text in _UNSUPPORTED.items() if properties >> bit & 1]
        if wanted:
            raise DeviceError(
                f"{name} asks to be given {', '.join(wanted)}, which tiny-amd does not: compile it "
                'with the attributes "amdgpu-no-dispatch-ptr", "amdgpu-no-queue-ptr" and the like'
            )
        if not properties >> _WAVES_OF_32 & 1:
            raise DeviceError(f"{name} was compiled for waves of 64, and {self.card.arch} has 32")

    def user_data(self, arguments: int) -> tuple[int, ...]:
        """Initial user SGPRs: the kernarg address, if the kernel has arguments."""
        return split(arguments) if self.has_arguments else ()

    def scratch_registers(self) -> tuple[int, Scratch | None]:
        """TMPRING_SIZE, and the memory that waves spill to; 0 and None where nothing is spilled."""
        if not self.private_bytes:
            return 0, None
        scratch = self.card.scratch
        assert scratch is not None
        return temporary_ring(self.card.card, self.private_bytes, scratch.size), scratch
