"""Cubins: what NVIDIA's compilers make, laid out for the address that it will run at.

They are ELF files for machine 190 whose sections have no addresses: each is placed by who loads
them. What a launch must say stands in sections of attributes, `.nv.info`.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tiny_hcq import ElfFile

__all__ = ["Cubin", "Kernel"]

CUDA_MACHINE: Final = 190
PREFETCHED_BYTES: Final = 4096
"""Padding behind the code, which the instruction prefetcher may read."""
SYSTEM_SHARED_BYTES: Final = 1024
"""Shared memory that the system takes of each block."""
_ALIGNMENT: Final = 256
_BITS, _NO_BITS, _SYMBOLS, _WITH_ADDENDS, _WITHOUT_ADDENDS = 1, 8, 2, 4, 9
_LOADED: Final = (".text.", ".nv.constant", ".nv.global")
_PARAMETERS: Final = ".nv.constant0"
_BANKS: Final = {f"constant{number}": number for number in range(1, 8)}
_MOST_BYTES: Final = 1 << 30

# Attributes, and how they are written.
_SIZED: Final = 4
_EXTERNS, _PARAMETER_BANK, _PARAMETER = 0x0F, 0x0A, 0x17
_REGISTERS, _MIN_STACK, _CALL_STACK, _BARRIERS = 0x2F, 0x12, 0x1E, 0x4C
_CLUSTER_ATTRIBUTE: Final = 0x3D

_ABSOLUTE_64, _LOW_32, _HIGH_32 = 0x02, 0x38, 0x39
_IMMEDIATE: Final = 4
"""Byte offset of the immediate in an instruction."""
_UNDEFINED: Final = 0


@dataclass(frozen=True)
class Kernel:
    """Attributes of a kernel that a launch needs."""

    entry: int
    """Entry point, as an offset in the image."""
    code_bytes: int
    registers: int
    barriers: int
    static_shared_bytes: int
    """Shared memory of its own, as the file counts it: from sm_90 on with what the system takes."""
    stack_bytes: int
    """Local memory of a thread."""
    parameter_base: int
    """Offset of its parameters in constant bank 0."""
    parameter_bytes: int
    offsets: tuple[int, ...]
    """Bytes of the parameters, from the first one on."""
    cluster: tuple[int, int, int] | None
    constants: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Place and bytes of the banks but the first, from the start of the image."""


Attributes = dict[int, list[bytes]]


class Cubin:
    """A cubin and one of its kernels. Raises FileFormatError for what cannot be loaded."""

    def __init__(self, binary: bytes, kernel: str) -> None:
        self._file = file = ElfFile(binary, kernel)
        if file.machine != CUDA_MACHINE:
            file.refuse(f"it is for machine {file.machine}, and NVIDIA's is {CUDA_MACHINE}")
        self._symbols = next((file.symbols(s) for s in file.sections if s.kind == _SYMBOLS), [])
        self._places = self._layout()
        end = max((at + file.sections[index].size for index, at in self._places.items()), default=0)
        self.size = end + PREFETCHED_BYTES
        """Size of the loaded image in bytes."""
        self.kernel = self._kernel(kernel)

    # --- layout

    def _layout(self) -> dict[int, int]:
        """Places of the sections that are loaded, by their number."""
        places, at = {}, 0
        for index, section in enumerate(self._file.sections):
            is_memory = section.label.startswith(_LOADED) and section.kind in (_BITS, _NO_BITS)
            if not is_memory or section.label.startswith(_PARAMETERS):
                continue
            alignment = max(min(section.alignment, _MOST_BYTES), _ALIGNMENT)
            at = -(-at // alignment) * alignment
            places[index] = at
            at += section.size
            if at > _MOST_BYTES:
                self._file.refuse(f"{section.label} would take {section.size:,} bytes of memory")
        return places

    def place(self, base: int) -> bytes:
        """The bytes for an address, a multiple of 256."""
        file = self._file
        memory = bytearray(self.size)
        for index, at in self._places.items():
            content = file.content(file.sections[index])
            memory[at : at + len(content)] = content
        for section in file.sections:
            if section.kind in (_WITH_ADDENDS, _WITHOUT_ADDENDS) and section.info in self._places:
                target = file.sections[section.info]
                start = self._places[section.info]
                for offset, kind, symbol, addend in file.relocations(section):
                    if offset + 8 > target.size:
                        file.refuse(f"a relocation is at {offset} of {target.size} bytes")
                    value = self._address(symbol, base)
                    self._relocate(memory, start + offset, kind, value, addend)
        return bytes(memory)

    def _address(self, number: int, base: int) -> int:
        if number >= len(self._symbols):
            self._file.refuse(f"a relocation is for symbol {number} of {len(self._symbols)}")
        symbol = self._symbols[number]
        if symbol.section == _UNDEFINED:
            self._file.refuse(f"it calls {symbol.name!r}, which is not in it")
        if symbol.section not in self._places:
            self._file.refuse(f"it takes the address of {symbol.name!r}, which is not in memory")
        return base + self._places[symbol.section] + symbol.value

    def _relocate(
        self, memory: bytearray, at: int, kind: int, value: int, addend: int | None
    ) -> None:
        if kind == _ABSOLUTE_64:
            (there,) = struct.unpack_from("<Q", memory, at)
            total = value + (there if addend is None else addend)
            struct.pack_into("<Q", memory, at, total % (1 << 64))
        elif kind in (_LOW_32, _HIGH_32):
            at += _IMMEDIATE
            (there,) = struct.unpack_from("<I", memory, at)
            total = value + (there if addend is None else addend)
            half = total >> 32 if kind == _HIGH_32 else total
            struct.pack_into("<I", memory, at, half & 0xFFFFFFFF)
        else:
            self._file.refuse(f"it has a relocation of type {kind:#x}, which NV does not know")

    # --- attributes

    def _attributes(self, label: str) -> Attributes:
        """Attributes of a section, each with what was written for it."""
        found: Attributes = defaultdict(list)
        section = self._file.section(label)
        if section is None:
            return found
        content, at = self._file.content(section), 0
        while at + 4 <= len(content):
            form, attribute, size = struct.unpack_from("<BBH", content, at)
            at += 4
            if form != _SIZED:
                found[attribute].append(size.to_bytes(2, "little"))
                continue
            if at + size > len(content):
                self._file.refuse(f"attribute {attribute:#x} of {label} is cut off")
            found[attribute].append(content[at : at + size])
            at += size
        return found

    def _of_symbol(self, attributes: Attributes, attribute: int, symbol: int) -> int | None:
        """Number of a symbol in a list of pairs."""
        for content in attributes[attribute]:
            if len(content) >= 8:
                number, value = struct.unpack_from("<II", content)
                if number == symbol:
                    return int(value)
        return None

    def _kernel(self, name: str) -> Kernel:
        file = self._file
        text = file.section(f".text.{name}")
        if text is None or file.sections.index(text) not in self._places:
            names = ", ".join(self._kernels()) or "none"
            file.refuse(f"it has no kernel {name!r}; there are: {names}")
        symbol = next((n for n, s in enumerate(self._symbols) if s.name == name), -1)
        common, own = self._attributes(".nv.info"), self._attributes(f".nv.info.{name}")
        if common[_EXTERNS] or own[_EXTERNS]:
            file.refuse("it calls functions that only CUDA's own driver has, such as printf")
        base, size = self._parameters(name, own)
        registers = self._of_symbol(common, _REGISTERS, symbol)
        shared = file.section(f".nv.shared.{name}")
        calls = max((int.from_bytes(c[:4], "little") for c in own[_CALL_STACK]), default=0)
        return Kernel(
            entry=self._places[file.sections.index(text)],
            code_bytes=text.size,
            registers=text.info >> 24 if registers is None else registers,
            barriers=max((c[0] for c in own[_BARRIERS] if c), default=1),
            static_shared_bytes=shared.size if shared is not None else 0,
            stack_bytes=(self._of_symbol(common, _MIN_STACK, symbol) or 0) + calls,
            parameter_base=base,
            parameter_bytes=size,
            offsets=self._offsets(own),
            cluster=self._cluster(own),
            constants=dict(self._constants(name)),
        )

    def _kernels(self) -> list[str]:
        return [
            s.label.removeprefix(".text.") for s in self._file.sections if s.label[:6] == ".text."
        ]

    def _parameters(self, name: str, own: Attributes) -> tuple[int, int]:
        content = next((c for c in own[_PARAMETER_BANK] if len(c) >= 8), None)
        if content is None:
            self._file.refuse(f"it does not say where the parameters of {name} are")
        _, base, size = struct.unpack_from("<IHH", content)
        return base, size

    def _offsets(self, own: Attributes) -> tuple[int, ...]:
        """Offsets of the parameters in their order."""
        found = {}
        for content in own[_PARAMETER]:
            if len(content) >= 12:
                _, ordinal, offset, _ = struct.unpack_from("<IHHI", content)
                found[ordinal] = offset
        return tuple(found[ordinal] for ordinal in sorted(found))

    def _cluster(self, own: Attributes) -> tuple[int, int, int] | None:
        for content in own[_CLUSTER_ATTRIBUTE]:
            if len(content) >= 12:
                x, y, z = struct.unpack_from("<III", content)
                return (x, y, z) if x * y * z > 1 else None
        return None

    def _constants(self, name: str) -> Iterator[tuple[int, tuple[int, int]]]:
        """Banks of constants of a kernel or of all, but the first."""
        for index, at in self._places.items():
            section = self._file.sections[index]
            head, _, of = section.label.removeprefix(".nv.").partition(".")
            if head in _BANKS and of in ("", name):
                yield _BANKS[head], (at, section.size)
