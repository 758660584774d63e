"""Kernels in a card's memory, and what a launch must say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tiny_amd.code import CodeObject
from tiny_amd.scratch import temporary_ring
from tiny_hcq import HCQBuffer, HCQProgram, Number, Word
from tinycore.errors import DeviceError
from tinycore.plugin import ProgramInfo

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
_WAVES_OF_32_BIT: Final = 10
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
        found = code.descriptor(code.place(0))
        self.verify(info.name, found.properties)
        super().__init__(
            device,
            info,
            argument_bytes=found.kernarg_bytes,
            scratch_bytes=found.private_bytes,
        )
        self.memory: HCQBuffer = self.owns(device.allocator.alloc(code.size))
        device.allocator.write(self.memory, memoryview(code.place(self.memory.address)))
        self.descriptor_address = self.memory.address + code.descriptor_offset
        self.entry = self.descriptor_address + found.entry
        self.has_arguments = bool(found.properties >> _KERNARG_POINTER & 1)
        self.shared_bytes = found.shared_bytes
        self.private_bytes = found.private_bytes
        self.rsrc1, self.rsrc3 = found.rsrc1, found.rsrc3
        self.rsrc2 = found.rsrc2 | -(-found.shared_bytes // _SHARED_UNIT) << _SHARED_SHIFT

    def verify(self, name: str, properties: int) -> None:
        """Raise DeviceError for a kernel that needs what is not given here."""
        wanted = [text for bit, text in _UNSUPPORTED.items() if properties >> bit & 1]
        if wanted:
            raise DeviceError(
                f"{name} asks to be given {', '.join(wanted)}, which tiny-amd does not: compile it "
                'with the attributes "amdgpu-no-dispatch-ptr", "amdgpu-no-queue-ptr" and the like'
            )
        wave = 32 if properties >> _WAVES_OF_32_BIT & 1 else 64
        if wave != self.card.wave:
            raise DeviceError(
                f"{name} was compiled for waves of {wave}, and {self.card.arch} has "
                f"{self.card.wave}"
            )

    def user_data(self, arguments: int) -> tuple[int, ...]:
        """Initial user SGPRs: the kernarg address, if the kernel has arguments."""
        return split(arguments) if self.has_arguments else ()

    def scratch_registers(self) -> tuple[int, Number, Number]:
        """TMPRING_SIZE and DISPATCH_SCRATCH_BASE; zeros where nothing is spilled.

        The address is what the device has at each submission: larger memory fits as well.
        """
        if not self.private_bytes:
            return 0, 0, 0
        device = self.card
        assert device.scratch is not None
        ring = temporary_ring(device.card, self.private_bytes, device.scratch.size)
        address = device.scratch_address
        return ring, Word(address, shift=8, bits=32), Word(address, shift=40, bits=32)
