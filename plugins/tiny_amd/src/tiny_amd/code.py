"""Code objects: what LLVM emits, laid out for the address that it will run at.

LLVM, "User Guide for AMDGPU Backend", sections "Relocation Records" and "Kernel Descriptor".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from tiny_hcq import ElfImage, Machine, Relocation, RelocationValue, integer_writer
from tinycore.errors import FileFormatError

__all__ = ["CodeObject", "Descriptor"]

AMDGPU_MACHINE: Final = 224
DESCRIPTOR_BYTES: Final = 64
PREFETCHED_BYTES: Final = 256
"""Padding behind the code, which the instruction prefetcher may read."""


def _upper_half(memory: bytearray, offset: int, value: int) -> None:
    memory[offset : offset + 4] = (value >> 32 & 0xFFFFFFFF).to_bytes(4, "little")


def _lower_half(memory: bytearray, offset: int, value: int) -> None:
    memory[offset : offset + 4] = (value & 0xFFFFFFFF).to_bytes(4, "little")


_ABSOLUTE, _RELATIVE = RelocationValue.ABSOLUTE, RelocationValue.RELATIVE
AMDGPU: Final = Machine(
    "AMDGPU",
    {
        1: Relocation("R_AMDGPU_ABS32_LO", _ABSOLUTE, 4, _lower_half),
        2: Relocation("R_AMDGPU_ABS32_HI", _ABSOLUTE, 4, _upper_half),
        3: Relocation("R_AMDGPU_ABS64", _ABSOLUTE, 8, integer_writer(8)),
        4: Relocation("R_AMDGPU_REL32", _RELATIVE, 4, integer_writer(4, True)),
        5: Relocation("R_AMDGPU_REL64", _RELATIVE, 8, integer_writer(8)),
        6: Relocation("R_AMDGPU_ABS32", _ABSOLUTE, 4, integer_writer(4)),
        10: Relocation("R_AMDGPU_REL32_LO", _RELATIVE, 4, _lower_half),
        11: Relocation("R_AMDGPU_REL32_HI", _RELATIVE, 4, _upper_half),
    },
    None,
)
UNIT_ID: Final = b"__hip_cuid_"
"""A byte in `.bss` by which clang 18 and later name the unit of HIP source; nothing reads it."""
OF_HIP: Final = AMDGPU._replace(unloaded=(".bss",))


@dataclass(frozen=True)
class Descriptor:
    """Fields of a kernel descriptor (64 bytes)."""

    shared_bytes: int
    private_bytes: int
    kernarg_bytes: int
    entry: int
    """Entry point, relative to the descriptor's address."""
    rsrc3: int
    rsrc1: int
    rsrc2: int
    properties: int

    @classmethod
    def read(cls, data: bytes) -> Descriptor:
        """Parse a descriptor from its bytes."""
        shared, private, kernarg = struct.unpack_from("<III", data)
        (entry,) = struct.unpack_from("<q", data, 16)
        rsrc3, rsrc1, rsrc2, properties = struct.unpack_from("<IIIH", data, 44)
        return cls(shared, private, kernarg, entry, rsrc3, rsrc1, rsrc2, properties)


class CodeObject:
    """An object of one kernel. Raises FileFormatError for anything else."""

    def __init__(self, binary: bytes, name: str) -> None:
        machine = OF_HIP if UNIT_ID in binary else AMDGPU
        self._image = ElfImage(binary, name, machines={AMDGPU_MACHINE: machine})
        symbol = f"{name}.kd"
        if symbol not in self._image.symbols:
            raise FileFormatError(f"{name}: the code object has no kernel descriptor {symbol!r}")
        self.descriptor_offset = self._image.symbols[symbol]
        if self.descriptor_offset + DESCRIPTOR_BYTES > self._image.size:
            raise FileFormatError(f"{name}: the kernel descriptor is cut off")
        self.size = self._image.size + PREFETCHED_BYTES
        """Size of the loaded image in bytes."""

    def place(self, base: int) -> bytes:
        """The bytes for an address, which must be a multiple of 4096."""
        return self._image.place(base) + bytes(PREFETCHED_BYTES)

    def descriptor(self, placed: bytes) -> Descriptor:
        """The kernel's descriptor, in what `place` gave."""
        start = self.descriptor_offset
        return Descriptor.read(placed[start : start + DESCRIPTOR_BYTES])
