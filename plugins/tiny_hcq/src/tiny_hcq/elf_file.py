"""A checked reader of 64-bit little-endian ELF files, for any machine.

In: the bytes of a relocatable object, an executable or a shared object. Out: sections, symbols and
relocations, as they stand in the file. Every length, offset and index is checked, so a damaged file
raises FileFormatError and nothing else. Reference: "Tool Interface Standard (TIS), Executable and
Linking Format (ELF)", version 1.2, and "System V ABI" (gABI) 4.1 for 64 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn

from tinycore.errors import FileFormatError

HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION: Final = struct.Struct("<IIQQQQIIQQ")
SYMBOL: Final = struct.Struct("<IBBHQQ")
RELOCATION: Final = struct.Struct("<QQq")
RELOCATION_WITHOUT_ADDEND: Final = struct.Struct("<QQ")

IDENTITY: Final = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
RELOCATABLE: Final = 1
SYMBOL_TABLE, STRING_TABLE, WITH_ADDENDS, NO_BITS, WITHOUT_ADDENDS = 2, 3, 4, 8, 9
UNDEFINED, ABSOLUTE, COMMON, RESERVED = 0, 0xFFF1, 0xFFF2, 0xFF00
WEAK: Final = 2


class Section(NamedTuple):
    """One section header; `label` is its name."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int
    label: str = ""


class Symbol(NamedTuple):
    """One entry of a symbol table."""

    name: str
    section: int
    value: int
    size: int
    weak: bool


class ElfRelocation(NamedTuple):
    """One relocation; the addend is None if it is stored in the relocated place."""

    offset: int
    kind: int
    symbol: int
    addend: int | None


class ElfFile:
    """An ELF file whose tables have been read and checked. Raises FileFormatError."""

    def __init__(self, data: bytes, name: str = "object") -> None:
        self.name = name
        self._data = data
        head = HEADER.unpack(self.span(0, HEADER.size, "the header"))
        identity, self.kind, self.machine = head[:3]
        if not identity.startswith(IDENTITY):
            self.refuse("it does not start as a 64-bit little-endian ELF file")
        segments, table, *_, segment_size, segment_count, section_size, count, names = head[5:]
        self.span(segments, segment_count * segment_size, "the program headers")
        self.sections = self._read_sections(table, count, section_size, names)

    def refuse(self, problem: str) -> NoReturn:
        """Raise FileFormatError with the file's name."""
        raise FileFormatError(f"{self.name} is no ELF object that can be loaded: {problem}")

    def span(self, offset: int, size: int, what: str) -> bytes:
        """Bytes of the file, which must exist."""
        if offset < 0 or size < 0 or offset + size > len(self._data):
            self.refuse(
                f"{what} takes bytes {offset} to {offset + size}, the file has {len(self._data)}"
            )
        return self._data[offset : offset + size]

    def content(self, section: Section) -> bytes:
        """The bytes of a section; none where it has only a size (SHT_NOBITS)."""
        if section.kind == NO_BITS:
            return b""
        return self.span(section.offset, section.size, "a section")

    def section(self, label: str) -> Section | None:
        """The first section of a name."""
        return next((section for section in self.sections if section.label == label), None)

    def symbols(self, table: Section) -> list[Symbol]:
        """The entries of a symbol table (SHT_SYMTAB or SHT_DYNSYM)."""
        if table.size % SYMBOL.size:
            self.refuse("the symbol table is cut off")
        if table.link >= len(self.sections) or self.sections[table.link].kind != STRING_TABLE:
            self.refuse("the symbol table has no string table")
        names = self.content(self.sections[table.link])
        return [self._symbol(names, f) for f in SYMBOL.iter_unpack(self.content(table))]

    def relocations(self, section: Section) -> Iterator[ElfRelocation]:
        """The entries of a relocation table, with addends (SHT_RELA) or without (SHT_REL)."""
        layout = RELOCATION if section.kind == WITH_ADDENDS else RELOCATION_WITHOUT_ADDEND
        if section.size % layout.size:
            self.refuse("a relocation table is cut off")
        for offset, info, *addend in layout.iter_unpack(self.content(section)):
            yield ElfRelocation(
                offset, info & 0xFFFFFFFF, info >> 32, addend[0] if addend else None
            )

    # --- reading

    def _read_sections(
        self, table: int, count: int, entry_size: int, names: int
    ) -> tuple[Section, ...]:
        if count and entry_size != SECTION.size:
            self.refuse(f"a section header has {entry_size} bytes instead of {SECTION.size}")
        content = self.span(table, count * SECTION.size, "the section table")
        sections = [Section(*fields) for fields in SECTION.iter_unpack(content)]
        if names >= len(sections) or sections[names].kind != STRING_TABLE:
            return tuple(sections)
        labels = self.content(sections[names])
        return tuple(s._replace(label=text_at(labels, s.name) or "") for s in sections)

    def _symbol(self, names: bytes, fields: tuple[int, ...]) -> Symbol:
        at, info, _, section, value, size = fields
        name = text_at(names, at)
        if name is None:
            self.refuse(f"a symbol's name starts at {at}, outside the string table")
        if section < RESERVED and section >= len(self.sections):
            self.refuse(f"symbol {name!r} is in section {section} of {len(self.sections)}")
        return Symbol(name, section, value, size, info >> 4 == WEAK)


def text_at(table: bytes, at: int) -> str | None:
    """The zero-terminated text at an offset of a string table; None outside of it."""
    end = table.find(b"\0", at)
    if at >= len(table) or end < 0:
        return None
    return table[at:end].decode("utf-8", "replace")
