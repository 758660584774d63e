"""Cubins without NVIDIA's assembler: the sections of one, with PTX where machine code would be.

`assemble` takes a module of PTX as ptxas does, and writes what ptxas 13 writes as a loader sees it:
.text, .nv.info, .nv.constant0, .nv.shared, symbols, relocations. The section .text of a kernel
begins with a header that says what the kernel needs; then comes the text of the whole module. A
relocation asks that the header name its own address, as code that refers to itself would.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import ClassVar, Final

from executor.launch import Kernel
from executor.syntax import Module, parse

__all__ = ["Code", "assemble"]

MAGIC: Final = b"PTX code"
PARAMETERS: Final = {80: 0x160, 90: 0x210, 100: 0x380}
SYSTEM_SHARED: Final = 0x400
FIRST_COUNTED: Final = 90
"""The first architecture whose .nv.shared counts the system's KiB, and whose registers only
.nv.info tells."""
CODE_ALIGNMENT: Final = 128
STACK_UNIT: Final = 0x240
PROGBITS, SYMTAB, STRTAB, RELA, NOBITS, REL = 1, 2, 3, 4, 8, 9
INFO: Final = 0x70000000
ABS_LOW, ABS_HIGH = 0x38, 0x39
SECTION: Final = struct.Struct("<IIQQQQIIQQ")
FORMAT_BYTE, FORMAT_HALF, FORMAT_BYTES = 2, 3, 4


@dataclass(frozen=True)
class Code:
    """Content of a .text section."""

    name: str
    text: bytes
    arch: int
    registers: int
    shared: int
    """Bytes of its own, without the system's."""
    local: int
    barriers: int
    parameter_bytes: int
    address: int = 0
    """Its address, as relocated, and ADDEND."""

    HEADER: ClassVar = struct.Struct("<8sIIIIIIIIIIII")
    HEADER_BYTES: ClassVar[int] = HEADER.size
    ADDEND: ClassVar[int] = 0x10
    LOW_PLACE: ClassVar[int] = HEADER.size - 12
    HIGH_PLACE: ClassVar[int] = HEADER.size - 8

    def packed(self, addend: int) -> bytes:
        """The bytes of the section, before relocation."""
        name = self.name.encode()
        size = self.HEADER_BYTES + len(name) + len(self.text)
        needs = (self.registers, self.shared, self.local, self.barriers, self.parameter_bytes)
        header = self.HEADER.pack(
            MAGIC, size, len(name), self.arch, *needs, 0, addend & 0xFFFFFFFF, 0, 0
        )
        return header + name + self.text

    @classmethod
    def size_of(cls, header: bytes) -> int | None:
        """Size of the code that begins with a header; None for what is none."""
        fields = cls.HEADER.unpack(header)
        return fields[1] if fields[0] == MAGIC else None

    @classmethod
    def read(cls, content: bytes) -> Code:
        """Code that has been placed."""
        fields = cls.HEADER.unpack_from(content)
        _, size, named, arch, registers, shared, local, barriers, parameters = fields[:9]
        low, high = fields[10], fields[11]
        name = content[cls.HEADER_BYTES : cls.HEADER_BYTES + named].decode()
        text = content[cls.HEADER_BYTES + named : size]
        return cls(
            name, text, arch, registers, shared, local, barriers, parameters, low | high << 32
        )


class Names:
    """A table of strings."""

    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, name: str) -> int:
        """Add a name; returns its offset."""
        self.data += name.encode() + b"\0"
        return len(self.data) - len(name) - 1


class Elf:
    """Sections and symbols of a file of 64 bits."""

    def __init__(self, flags: int) -> None:
        self.flags = flags
        self.names, self.strings = Names(), Names()
        self.sections: list[tuple[str, int, int, bytes, int, int, int, int, int]] = []
        self.symbols = [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)]

    def section(
        self,
        name: str,
        kind: int,
        data: bytes,
        *,
        flags: int = 0,
        size: int | None = None,
        link: int = 0,
        info: int = 0,
        alignment: int = 4,
        entry: int = 0,
    ) -> int:
        """Add a section; its index."""
        length = len(data) if size is None else size
        self.sections.append((name, kind, flags, data, length, link, info, alignment, entry))
        return len(self.sections)

    def symbol(self, name: str, section: int, size: int, kind: int) -> int:
        """Add a global symbol at the beginning of a section; its index."""
        place = self.strings.add(name)
        self.symbols.append(struct.pack("<IBBHQQ", place, 1 << 4 | kind, 0x10, section, 0, size))
        return len(self.symbols) - 1

    def written(self) -> bytes:
        """The file."""
        symbols = b"".join(self.symbols)
        count = len(self.sections)
        self.section(".strtab", STRTAB, self.strings.data, alignment=1)
        self.section(".symtab", SYMTAB, symbols, link=count + 1, info=1, alignment=8, entry=24)
        index = self.section(".shstrtab", STRTAB, b"", alignment=1)
        places = [self.names.add(found[0]) for found in self.sections]
        name, kind, flags, _, _, *rest = self.sections[-1]
        self.sections[-1] = (name, kind, flags, self.names.data, len(self.names.data), *rest)  # type: ignore[assignment]
        body, table = bytearray(64), [SECTION.pack(*[0] * 10)]
        for place, found in zip(places, self.sections, strict=True):
            _, kind, flags, data, length, link, info, alignment, entry = found
            if kind in (REL, RELA):
                link = count + 2  # the symbols
            body += bytes(-len(body) % alignment)
            where = (0, len(body), length, link, info, alignment, entry)
            table.append(SECTION.pack(place, kind, flags, *where))
            body += data
        body += bytes(-len(body) % 8)
        ident = b"\x7fELF\x02\x01\x01" + bytes([65, 8]) + bytes(7)
        body[:64] = ident + struct.pack(
            "<HHIQQQIHHHHHH",
            2,
            190,
            1,
            0,
            0,
            len(body),
            self.flags,
            64,
            56,
            0,
            64,
            len(table),
            index,
        )
        return bytes(body + b"".join(table))


def attribute(number: int, *words: int, form: str = "") -> bytes:
    """A record of .nv.info with bytes after it."""
    payload = struct.pack(f"<{form or 'I' * len(words)}", *words)
    return struct.pack("<BBH", FORMAT_BYTES, number, len(payload)) + payload


def small(number: int, value: int, form: int = FORMAT_HALF) -> bytes:
    """A record of .nv.info that holds its value."""
    return struct.pack("<BBH", form, number, value)


def code_of(module: Module, name: str, text: bytes, arch: int) -> Code:
    """Code of a kernel, with the resources that it needs."""
    kernel = Kernel(module, name)
    function = kernel.function
    barriers = any(i.opcode in ("bar", "barrier") for i in function.instructions)
    return Code(
        name=name,
        text=text,
        arch=arch,
        registers=24 + 8 * (len(function.instructions) % 4),
        shared=kernel.shared_static,
        local=-(-kernel.local_bytes // 16) * 16,
        barriers=int(barriers),
        parameter_bytes=function.parameter_bytes,
    )


def assemble(source: str | bytes, arch: int) -> bytes:
    """The cubin of a module of PTX, for an architecture: 90 is sm_90."""
    text = (source.encode() if isinstance(source, str) else source).rstrip(b"\0")
    module = parse(text.decode())
    entries = re.findall(rb"\.entry\s+([\w$.]+)", text)
    elf = Elf(0x6000000 | arch << 8 | (2 if arch >= 100 else 4))
    general = b""
    for entry in entries:
        parameters = module.functions[entry.decode()].parameters
        sizes = [(p.offset, p.size or 0) for p in parameters]
        general += add_kernel(elf, code_of(module, entry.decode(), text, arch), sizes)
    elf.section(".nv.info", INFO, general)
    return elf.written()


def add_kernel(elf: Elf, code: Code, parameters: list[tuple[int, int]]) -> bytes:
    """The sections of a kernel; its records of the general .nv.info."""
    name, is_counted = code.name, code.arch >= FIRST_COUNTED
    base = PARAMETERS[max(known for known in PARAMETERS if known <= code.arch)]
    packed = code.packed(0 if is_counted else code.ADDEND)
    index = elf.section(
        f".text.{name}",
        PROGBITS,
        packed,
        flags=6,
        info=len(elf.symbols) | (0 if is_counted else code.registers << 24),
        alignment=CODE_ALIGNMENT,
    )
    symbol = elf.symbol(name, index, len(packed), kind=2)
    bank = bytes(base + code.parameter_bytes)
    constants = elf.section(f".nv.constant0.{name}", PROGBITS, bank, flags=2, info=index)
    of_bank = elf.symbol(f".nv.constant0.{name}", constants, 0, kind=3)
    info = attribute(0x37, 130)
    info += attribute(0x0A, of_bank, base, code.parameter_bytes, form="IHH")
    info += small(0x19, code.parameter_bytes) + small(0x1B, 0xFF)
    for ordinal in reversed(range(len(parameters))):
        offset, size = parameters[ordinal]
        info += attribute(0x17, 0, ordinal, offset, size << 18 | 0x1F000, form="IHHI")
    if code.barriers:
        info += small(0x4C, code.barriers, FORMAT_BYTE)
    elf.section(f".nv.info.{name}", INFO, info, info=index)
    add_relocations(elf, name, index, symbol, is_counted=is_counted)
    shared = code.shared + (SYSTEM_SHARED if is_counted and code.shared else 0)
    if shared:
        elf.section(
            f".nv.shared.{name}", NOBITS, b"", flags=3, size=shared, info=index, alignment=16
        )
    stack = [attribute(number, symbol, code.local) for number in (0x11, 0x12, 0x23)]
    return attribute(0x2F, symbol, code.registers) + b"".join(stack)


def add_relocations(elf: Elf, name: str, target: int, symbol: int, *, is_counted: bool) -> None:
    """Ask for the address of the kernel in its header: both halves, each behind an opcode word."""
    places = ((Code.LOW_PLACE - 4, ABS_LOW), (Code.HIGH_PLACE - 4, ABS_HIGH))
    if is_counted:
        packed = [struct.pack("<QQq", p, symbol << 32 | k, Code.ADDEND) for p, k in places]
        kind, prefix, entry = RELA, ".rela", 24
    else:
        packed = [struct.pack("<QQ", p, symbol << 32 | k) for p, k in places]
        kind, prefix, entry = REL, ".rel", 16
    elf.section(
        f"{prefix}.text.{name}", kind, b"".join(packed), info=target, alignment=8, entry=entry
    )
