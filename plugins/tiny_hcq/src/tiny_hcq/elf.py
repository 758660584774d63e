"""ELF loader: object files laid out and relocated to an image at an address.

In: an object that `elf_file` has read, for x86-64, AArch64, or a machine whose relocations a plugin
states. Out: an `ElfImage`: how much memory it needs, its symbols, and its bytes for any base
address. It maps no memory and runs nothing; that writable pages are never executable is the duty of
whoever does.

Whatever is wrong with a file raises FileFormatError and nothing else. References: "System V ABI,
AMD64 Supplement" and "ELF for the Arm 64-bit Architecture (AArch64)".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tiny_hcq.elf_file import (
    ABSOLUTE,
    COMMON,
    NO_BITS,
    RELOCATABLE,
    RESERVED,
    SYMBOL_TABLE,
    UNDEFINED,
    WITH_ADDENDS,
    WITHOUT_ADDENDS,
    ElfFile,
    Section,
    Symbol,
)
from tiny_hcq.relocations import (
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

WRITABLE, ALLOCATED, THREAD_LOCAL = 0x1, 0x2, 0x400

MAX_IMAGE_BYTES: Final = 1 << 28
MAX_ALIGNMENT: Final = 1 << 16

Resolver = Callable[[str], int]
"""The address of a symbol that the object does not define. May raise LookupError."""


class ElfImage:
    """An object laid out in memory: its sections in order, then stubs, then the address table.

    `symbols` gives the offset of every symbol it defines. An object with data that it changes is
    refused: all of the image can be made read-only and executable once it is filled.

    `machines` are those it may be for, by the number in the header.
    """

    def __init__(
        self,
        data: bytes,
        name: str = "object",
        machines: Mapping[int, Machine] = MACHINES,
    ) -> None:
        self.name = name
        self.file = ElfFile(data, name)
        self._refuse = self.file.refuse
        self.machine = self._check_header(machines)
        self._sections = self.file.sections
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
        """Bytes of memory that it needs."""
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
                memory[offset : offset + section.size] = self.file.content(section)
        addresses = [self._address(symbol, base, resolve) for symbol in self._symbols]
        for number, offset in self._stubs.items():
            assert self.machine.stub is not None
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

    def _check_header(self, machines: Mapping[int, Machine]) -> Machine:
        kind, machine = self.file.kind, self.file.machine
        if kind != RELOCATABLE:
            self._refuse(f"its type is {kind}, and {RELOCATABLE} (relocatable) is needed")
        if machine not in machines:
            known = [f"{each.name} ({number})" for number, each in machines.items()]
            listed = f"neither {' nor '.join(known)}" if len(known) > 1 else f"not {known[0]}"
            self._refuse(f"machine {machine} is {listed}")
        return machines[machine]

    def _lay_out(self) -> tuple[dict[int, int], int]:
        """The offset in memory of every section that is loaded, and the end, aligned."""
        offsets: dict[int, int] = {}
        end = 0
        for index, section in enumerate(self._sections):
            if not section.flags & ALLOCATED or not section.size or self._is_unloaded(section):
                continue
            alignment = max(section.alignment, 1)
            if alignment & (alignment - 1) or alignment > MAX_ALIGNMENT:
                self._refuse(f"section {index} has the alignment {section.alignment}")
            if section.flags & THREAD_LOCAL:
                self._refuse("it has thread-local data")
            if section.flags & WRITABLE and not self._is_constant(section):
                self._refuse("it has writable data, which a kernel must not")
            if section.kind != NO_BITS:
                self.file.content(section)
            end = -(-end // alignment) * alignment
            offsets[index] = end
            end += section.size
            if end > MAX_IMAGE_BYTES:
                self._refuse(f"it needs more than {MAX_IMAGE_BYTES} bytes of memory")
        return offsets, -(-end // ENTRY_BYTES) * ENTRY_BYTES

    def _is_constant(self, section: Section) -> bool:
        """True if a section is writable only because it holds addresses, or unwind tables."""
        return section.kind in self.machine.harmless or section.label.startswith(".data.rel.ro")

    def _is_unloaded(self, section: Section) -> bool:
        """True if a section is no part of the image."""
        return section.label.startswith(self.machine.unloaded)

    def _read_symbols(self) -> list[Symbol]:
        tables = [section for section in self._sections if section.kind == SYMBOL_TABLE]
        if len(tables) != 1:
            self._refuse(f"it has {len(tables)} symbol tables")
        symbols = self.file.symbols(tables[0])
        for symbol in symbols:
            self._check_symbol(symbol)
        return symbols

    def _check_symbol(self, symbol: Symbol) -> None:
        """Raise FileFormatError for a symbol that no image can have."""
        name, section = symbol.name, symbol.section
        if section == COMMON:
            self._refuse(f"symbol {name!r} is common data, which is writable")
        if section < RESERVED:
            if section in self._offsets and symbol.value > self._sections[section].size:
                self._refuse(f"symbol {name!r} lies outside its section")
        elif section != ABSOLUTE:
            self._refuse(f"symbol {name!r} is in the reserved section {section:#x}")

    def _read_relocations(self) -> Iterator[Site]:
        for section in self._sections:
            if section.info not in self._offsets:
                continue
            if section.kind == WITHOUT_ADDENDS:
                self._refuse("it has relocations without addends")
            if section.kind == WITH_ADDENDS:
                yield from self._sites(section)

    def _sites(self, section: Section) -> Iterator[Site]:
        """Yield the sites of one relocation table."""
        target = self._sections[section.info]
        start = self._offsets[section.info]
        for offset, kind, symbol, addend in self.file.relocations(section):
            if symbol >= len(self._symbols):
                self._refuse(f"a relocation names symbol {symbol} of {len(self._symbols)}")
            row = self.machine.rows.get(kind)
            if row is None:
                self._refuse(
                    f"relocation type {kind} of {self.machine.name} is unknown "
                    f"(symbol {self._symbols[symbol].name!r})"
                )
            if offset + row.width > target.size or target.kind == NO_BITS:
                self._refuse(f"a relocation at {offset} lies outside its section")
            assert addend is not None, "the table has addends"
            yield Site(start + offset, kind, symbol, addend)

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
            if undefined and self.machine.stub and needs_stub(self.machine, site.kind):
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
