"""Relocatable ELF objects, as compilers emit them, turned into bytes that run at an address.

Floor 1. Imports `errors`. In: a 64-bit little-endian ET_REL object for x86-64 or AArch64. Out: an
`ElfImage`: how much memory it needs, its symbols, and its bytes for any base address. It maps no
memory and runs nothing; that writable pages are never executable is the duty of whoever does.

Every length, offset and index is checked, so a damaged file raises FileFormatError and nothing
else. References: "System V ABI, AMD64 Supplement" and "ELF for the Arm 64-bit Architecture
(AArch64)".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, NoReturn

from tinycore.device.relocations import (
    ENTRY_BYTES,
    MACHINES,
    Machine,
    RelocationError,
    Site,
    needs_address_entry,
    needs_stub,
    relocate,
)
from tinycore.errors import FileFormatError

__all__ = ["ElfImage"]

HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION: Final = struct.Struct("<IIQQQQIIQQ")
SYMBOL: Final = struct.Struct("<IBBHQQ")
RELOCATION: Final = struct.Struct("<QQq")

IDENTITY: Final = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
RELOCATABLE: Final = 1
SYMBOL_TABLE, STRING_TABLE, WITH_ADDENDS, NO_BITS, WITHOUT_ADDENDS = 2, 3, 4, 8, 9
WRITABLE, ALLOCATED, THREAD_LOCAL = 0x1, 0x2, 0x400
UNDEFINED, ABSOLUTE, COMMON, RESERVED = 0, 0xFFF1, 0xFFF2, 0xFF00
WEAK: Final = 2

MAX_IMAGE_BYTES: Final = 1 << 28
MAX_ALIGNMENT: Final = 1 << 16

Resolver = Callable[[str], int]
"""The address of a symbol that the object does not define. May raise LookupError."""


class Section(NamedTuple):
    """One section header."""

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


class Symbol(NamedTuple):
    """One entry of the symbol table."""

    name: str
    section: int
    value: int
    weak: bool


class ElfImage:
    """An object laid out in memory: its sections in order, then stubs, then the address table.

    `symbols` gives the offset of every symbol it defines. An object with data that it changes is
    refused: all of the image can be made read-only and executable once it is filled.
    """

    def __init__(self, data: bytes, name: str = "object") -> None:
        self.name = name
        self._data = data
        self._section_names = b""
        self._sections, self.machine = self._read_header()
        self._offsets, end = self._lay_out()
        self._symbols = self._read_symbols()
        self._relocations = list(self._read_relocations())
        self.undefined = self._undefined()
        """The symbols that a resolver must know."""
        stubs, entries = self._needs()
        self._stubs = {symbol: end + i * ENTRY_BYTES for i, symbol in enumerate(stubs)}
        end += len(stubs) * ENTRY_BYTES
        self._entries = {symbol: end + i * 8 for i, symbol in enumerate(entries)}
        self.size = end + len(entries) * 8
        """How many bytes of memory it needs."""
        self.symbols: Mapping[str, int] = {
            symbol.name: self._offsets[symbol.section] + symbol.value
            for symbol in self._symbols
            if symbol.name and symbol.section in self._offsets
        }

    def place(self, base: int, resolve: Resolver | None = None) -> bytes:
        """The bytes of the image for an address, which must be a multiple of 4096.

        Raises FileFormatError when a symbol is not resolved or lies too far away.
        """
        memory = bytearray(self.size)
        for index, offset in self._offsets.items():
            section = self._sections[index]
            if section.kind != NO_BITS:
                memory[offset : offset + section.size] = self._content(section)
        addresses = [self._address(symbol, base, resolve) for symbol in self._symbols]
        for number, offset in self._stubs.items():
            memory[offset : offset + ENTRY_BYTES] = self.machine.stub(addresses[number])
        for number, offset in self._entries.items():
            struct.pack_into("<Q", memory, offset, addresses[number] % (1 << 64))
        for site in self._relocations:
            try:
                relocate(
                    self.machine,
                    memory,
                    base,
                    site,
                    addresses=addresses,
                    stubs=self._stubs,
                    entries=self._entries,
                )
            except RelocationError as error:
                self._refuse(f"{error} (symbol {self._symbols[site.symbol].name!r})")
        return bytes(memory)

    # --- reading

    def _refuse(self, problem: str) -> NoReturn:
        raise FileFormatError(f"{self.name} is no ELF object that can be loaded: {problem}")

    def _span(self, offset: int, size: int, what: str) -> bytes:
        if offset < 0 or size < 0 or offset + size > len(self._data):
            self._refuse(
                f"{what} takes bytes {offset} to {offset + size}, the file has {len(self._data)}"
            )
        return self._data[offset : offset + size]

    def _content(self, section: Section) -> bytes:
        return self._span(section.offset, section.size, "a section")

    def _read_header(self) -> tuple[list[Section], Machine]:
        head = HEADER.unpack(self._span(0, HEADER.size, "the header"))
        identity, kind, machine, _, _, _, table, _, _, _, _, entry_size, count, names = head
        if not identity.startswith(IDENTITY):
            self._refuse("it does not start as a 64-bit little-endian ELF file")
        if kind != RELOCATABLE:
            self._refuse(f"its type is {kind}, and 1 (relocatable) is needed")
        if machine not in MACHINES:
            self._refuse(f"machine {machine} is neither x86-64 (62) nor AArch64 (183)")
        if count and entry_size != SECTION.size:
            self._refuse(f"a section header has {entry_size} bytes instead of {SECTION.size}")
        content = self._span(table, count * SECTION.size, "the section table")
        sections = [Section(*fields) for fields in SECTION.iter_unpack(content)]
        if names < len(sections) and sections[names].kind == STRING_TABLE:
            self._section_names = self._content(sections[names])
        return sections, MACHINES[machine]

    def _lay_out(self) -> tuple[dict[int, int], int]:
        """The offset in memory of every section that is loaded, and the end, aligned."""
        offsets: dict[int, int] = {}
        end = 0
        for index, section in enumerate(self._sections):
            if not section.flags & ALLOCATED or not section.size:
                continue
            alignment = max(section.alignment, 1)
            if alignment & (alignment - 1) or alignment > MAX_ALIGNMENT:
                self._refuse(f"section {index} has the alignment {section.alignment}")
            if section.flags & THREAD_LOCAL:
                self._refuse("it has thread-local data")
            if section.flags & WRITABLE and not self._is_constant(section):
                self._refuse("it has writable data, which a kernel must not")
            if section.kind != NO_BITS:
                self._content(section)
            end = -(-end // alignment) * alignment
            offsets[index] = end
            end += section.size
            if end > MAX_IMAGE_BYTES:
                self._refuse(f"it needs more than {MAX_IMAGE_BYTES} bytes of memory")
        return offsets, -(-end // ENTRY_BYTES) * ENTRY_BYTES

    def _is_constant(self, section: Section) -> bool:
        """Whether a section is writable only because it holds addresses, or unwind tables."""
        if section.kind in self.machine.harmless or not self._section_names:
            return section.kind in self.machine.harmless
        return self._section_names.startswith(b".data.rel.ro", section.name)

    def _read_symbols(self) -> list[Symbol]:
        tables = [section for section in self._sections if section.kind == SYMBOL_TABLE]
        if len(tables) != 1:
            self._refuse(f"it has {len(tables)} symbol tables")
        table = tables[0]
        if table.size % SYMBOL.size:
            self._refuse("the symbol table is cut off")
        if table.link >= len(self._sections) or self._sections[table.link].kind != STRING_TABLE:
            self._refuse("the symbol table has no string table")
        names = self._content(self._sections[table.link])
        return [self._symbol(names, f) for f in SYMBOL.iter_unpack(self._content(table))]

    def _symbol(self, names: bytes, fields: tuple[int, ...]) -> Symbol:
        at, info, _, section, value, _ = fields
        end = names.find(b"\0", at)
        if at >= len(names) or end < 0:
            self._refuse(f"a symbol's name starts at {at}, outside the string table")
        name = names[at:end].decode("utf-8", "replace")
        if section == COMMON:
            self._refuse(f"symbol {name!r} is common data, which is writable")
        if section < RESERVED:
            if section >= len(self._sections):
                self._refuse(f"symbol {name!r} is in section {section} of {len(self._sections)}")
            if section in self._offsets and value > self._sections[section].size:
                self._refuse(f"symbol {name!r} lies outside its section")
        elif section != ABSOLUTE:
            self._refuse(f"symbol {name!r} is in the reserved section {section:#x}")
        return Symbol(name, section, value, info >> 4 == WEAK)

    def _read_relocations(self) -> Iterator[Site]:
        for section in self._sections:
            if section.kind == WITHOUT_ADDENDS and section.info in self._offsets:
                self._refuse("it has relocations without addends")
            if section.kind != WITH_ADDENDS or section.info not in self._offsets:
                continue
            if section.size % RELOCATION.size:
                self._refuse("a relocation table is cut off")
            target = self._sections[section.info]
            for offset, info, addend in RELOCATION.iter_unpack(self._content(section)):
                symbol, kind = info >> 32, info & 0xFFFFFFFF
                if symbol >= len(self._symbols):
                    self._refuse(f"a relocation names symbol {symbol} of {len(self._symbols)}")
                width = self.machine.widths.get(kind)
                if width is None:
                    self._refuse(
                        f"relocation type {kind} of {self.machine.name} is unknown "
                        f"(symbol {self._symbols[symbol].name!r})"
                    )
                if offset + width > target.size or target.kind == NO_BITS:
                    self._refuse(f"a relocation at {offset} lies outside its section")
                yield Site(self._offsets[section.info] + offset, kind, symbol, addend)

    def _undefined(self) -> tuple[str, ...]:
        used = {self._symbols[site.symbol] for site in self._relocations}
        names = {symbol.name for symbol in used if symbol.section == UNDEFINED and symbol.name}
        return tuple(sorted(names))

    def _needs(self) -> tuple[dict[int, None], dict[int, None]]:
        """The symbols that need a stub, being called and far away, and an entry of the address
        table.
        """
        stubs: dict[int, None] = {}
        entries: dict[int, None] = {}
        for site in self._relocations:
            undefined = self._symbols[site.symbol].section == UNDEFINED
            if undefined and needs_stub(self.machine, site.kind):
                stubs[site.symbol] = None
            if needs_address_entry(self.machine, site.kind):
                entries[site.symbol] = None
        return stubs, entries

    def _address(self, symbol: Symbol, base: int, resolve: Resolver | None) -> int:
        if symbol.section in self._offsets:
            return base + self._offsets[symbol.section] + symbol.value
        if symbol.section == ABSOLUTE:
            return symbol.value
        if symbol.section != UNDEFINED or symbol.name not in self.undefined:
            return 0  # not loaded, and not referred to
        try:
            found = resolve(symbol.name) if resolve is not None else 0
        except LookupError as error:
            raise FileFormatError(
                f"{self.name} calls {symbol.name!r}, which is not known"
            ) from error
        if not found and not symbol.weak:
            raise FileFormatError(f"{self.name} calls {symbol.name!r}, which is not known")
        return found
