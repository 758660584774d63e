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
_SCRATCH_ADDRESS: Final = 5
_UNSUPPORTED: Final = {
    0: "the address of scratch as a buffer",
    1: "the packet that launched it",
    2: "its queue",
    4: "the number of the launch",
    _SCRATCH_ADDRESS: "the address of scratch",
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
        self.verify(info.name, found.properties, found.private_bytes)
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
        self.asks_for_scratch = bool(found.properties >> _SCRATCH_ADDRESS & 1)
        self.shared_bytes = found.shared_bytes
        self.private_bytes = found.private_bytes
        self.rsrc1, self.rsrc3 = found.rsrc1, found.rsrc3
        self.rsrc2 = found.rsrc2 | -(-found.shared_bytes // _SHARED_UNIT) << _SHARED_SHIFT

    def verify(self, name: str, properties: int, private_bytes: int) -> None:
        """Raise DeviceError for a kernel that needs what is not given here."""
        asked = properties
        if self.card.generation.scratch_is_user_data:
            if self.card.uses_aql and private_bytes:
                raise DeviceError(
                    f"{name} needs scratch memory, whose address queues of AQL do not give to a "
                    f"kernel of {self.card.arch}: leave AMD_AQL unset"
                )
            asked &= ~(1 << _SCRATCH_ADDRESS)
        wanted = [text for bit, text in _UNSUPPORTED.items() if asked >> bit & 1]
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

    def user_data(self, arguments: int) -> tuple[Number, ...]:
        """Initial user SGPRs: the addresses of arguments and of scratch, as the kernel asks."""
        found: tuple[Number, ...] = split(arguments) if self.has_arguments else ()
        if self.asks_for_scratch and self.private_bytes:
            address = self.card.scratch_address
            return *found, Word(address, bits=32), Word(address, shift=32, bits=32)
        return (*found, 0, 0) if self.asks_for_scratch else found

    def scratch_registers(self) -> tuple[int, tuple[Number, ...]]:
        """TMPRING_SIZE and DISPATCH_SCRATCH_BASE, where there is one; zeros if nothing is spilled.

        The address is what the device has at each submission: larger memory fits as well.
        """
        device, ring = self.card, 0
        base: tuple[Number, ...] = (0, 0)
        if self.private_bytes:
            assert device.scratch is not None
            ring = temporary_ring(device.card, self.private_bytes, device.scratch.size)
            address = device.scratch_address
            base = (Word(address, shift=8, bits=32), Word(address, shift=40, bits=32))
        return ring, () if device.generation.scratch_is_user_data else base
