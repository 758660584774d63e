"""ELF relocations of freestanding code: the value and the encoding of each.

One table per processor: a relocation is a row. In the rows, S is the symbol's address, A the
addend, P the place, G the address of the symbol's table entry. References: "System V ABI, AMD64
Supplement" 4.4; "ELF for the Arm 64-bit Architecture" 5.7.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

ENTRY_BYTES: Final = 16
"""A stub: a jump to an address anywhere in memory."""

PAGE_MASK: Final = ~0xFFF


class RelocationError(Exception):
    """A value does not fit where it must be written; `elf` adds which symbol."""


class Site(NamedTuple):
    """One place to fill in: its offset in the image, the relocation's number, symbol and addend."""

    offset: int
    kind: int
    symbol: int
    addend: int


class RelocationValue(enum.Enum):
    """The value of a relocation."""

    ABSOLUTE = "S + A"
    RELATIVE = "S + A - P"
    CALL = "S + A - P, through a stub where S is outside the object"
    ENTRY = "G + A - P"
    PAGE = "page of S + A, less page of P"
    ENTRY_PAGE = "page of G + A, less page of P"
    ENTRY_ABSOLUTE = "G + A"


class Relocation(NamedTuple):
    """One relocation: its name, what it computes, and how it is written."""

    name: str
    value: RelocationValue
    width: int
    write: Callable[[bytearray, int, int], None]


def integer_writer(width: int, signed: bool | None = None) -> Callable[[bytearray, int, int], None]:
    """Write an integer of `width` bytes, checked to fit; `signed` None takes either reading."""
    bits = 8 * width
    least = 0 if signed is False else -(1 << (bits - 1))
    most = (1 << (bits - 1)) if signed else (1 << bits)

    def write(memory: bytearray, offset: int, value: int) -> None:
        if bits < 64 and not least <= value < most:
            raise RelocationError(f"{value:#x} does not fit into {width} bytes")
        memory[offset : offset + width] = (value % (1 << bits)).to_bytes(width, "little")

    return write


def field(
    low: int, bits: int, shift: int, signed: bool = True
) -> Callable[[bytearray, int, int], None]:
    """Write value >> shift into `bits` bits from bit `low` of an instruction."""

    def write(memory: bytearray, offset: int, value: int) -> None:
        if value & ((1 << shift) - 1):
            raise RelocationError(f"{value:#x} is not a multiple of {1 << shift}")
        scaled = value >> shift
        if signed and not -(1 << (bits - 1)) <= scaled < 1 << (bits - 1):
            raise RelocationError(f"{value:#x} is too far away")
        mask = ((1 << bits) - 1) << low
        (word,) = struct.unpack_from("<I", memory, offset)
        struct.pack_into("<I", memory, offset, word & ~mask | scaled << low & mask)

    return write


def page_offset(shift: int) -> Callable[[bytearray, int, int], None]:
    """Write the low 12 bits of an address, in units of the access, into bits 10 to 21."""
    write_field = field(10, 12 - shift, shift, signed=False)

    def write(memory: bytearray, offset: int, value: int) -> None:
        write_field(memory, offset, value & 0xFFF)

    return write


def page_address(memory: bytearray, offset: int, value: int) -> None:
    """Write the number of pages into ADRP: low 2 bits at bit 29, the other 19 at bit 5."""
    pages = value >> 12
    if not -(1 << 20) <= pages < 1 << 20:
        raise RelocationError(f"{value:#x} is too far away")
    (word,) = struct.unpack_from("<I", memory, offset)
    word &= ~(0x3 << 29 | 0x7FFFF << 5)
    word |= (pages & 0x3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    struct.pack_into("<I", memory, offset, word)


X86_64: Final = {
    1: Relocation("R_X86_64_64", RelocationValue.ABSOLUTE, 8, integer_writer(8, None)),
    2: Relocation("R_X86_64_PC32", RelocationValue.RELATIVE, 4, integer_writer(4, True)),
    4: Relocation("R_X86_64_PLT32", RelocationValue.CALL, 4, integer_writer(4, True)),
    9: Relocation("R_X86_64_GOTPCREL", RelocationValue.ENTRY, 4, integer_writer(4, True)),
    10: Relocation("R_X86_64_32", RelocationValue.ABSOLUTE, 4, integer_writer(4, False)),
    11: Relocation("R_X86_64_32S", RelocationValue.ABSOLUTE, 4, integer_writer(4, True)),
    24: Relocation("R_X86_64_PC64", RelocationValue.RELATIVE, 8, integer_writer(8, None)),
    41: Relocation("R_X86_64_GOTPCRELX", RelocationValue.ENTRY, 4, integer_writer(4, True)),
    42: Relocation("R_X86_64_REX_GOTPCRELX", RelocationValue.ENTRY, 4, integer_writer(4, True)),
}

AARCH64: Final = {
    257: Relocation("R_AARCH64_ABS64", RelocationValue.ABSOLUTE, 8, integer_writer(8, None)),
    260: Relocation("R_AARCH64_PREL64", RelocationValue.RELATIVE, 8, integer_writer(8, None)),
    261: Relocation("R_AARCH64_PREL32", RelocationValue.RELATIVE, 4, integer_writer(4, None)),
    275: Relocation("R_AARCH64_ADR_PREL_PG_HI21", RelocationValue.PAGE, 4, page_address),
    277: Relocation("R_AARCH64_ADD_ABS_LO12_NC", RelocationValue.ABSOLUTE, 4, page_offset(0)),
    278: Relocation("R_AARCH64_LDST8_ABS_LO12_NC", RelocationValue.ABSOLUTE, 4, page_offset(0)),
    282: Relocation("R_AARCH64_JUMP26", RelocationValue.CALL, 4, field(0, 26, 2)),
    283: Relocation("R_AARCH64_CALL26", RelocationValue.CALL, 4, field(0, 26, 2)),
    284: Relocation("R_AARCH64_LDST16_ABS_LO12_NC", RelocationValue.ABSOLUTE, 4, page_offset(1)),
    285: Relocation("R_AARCH64_LDST32_ABS_LO12_NC", RelocationValue.ABSOLUTE, 4, page_offset(2)),
    286: Relocation("R_AARCH64_LDST64_ABS_LO12_NC", RelocationValue.ABSOLUTE, 4, page_offset(3)),
    299: Relocation("R_AARCH64_LDST128_ABS_LO12_NC", RelocationValue.ABSOLUTE, 4, page_offset(4)),
    311: Relocation("R_AARCH64_ADR_GOT_PAGE", RelocationValue.ENTRY_PAGE, 4, page_address),
    312: Relocation(
        "R_AARCH64_LD64_GOT_LO12_NC", RelocationValue.ENTRY_ABSOLUTE, 4, page_offset(3)
    ),
}


def x86_64_stub(address: int) -> bytes:
    """`jmp *0(%rip)`, then the address."""
    return b"\xff\x25\0\0\0\0" + struct.pack("<Q", address) + b"\xcc\xcc"


def aarch64_stub(address: int) -> bytes:
    """`ldr x16, .+8; br x16`, then the address. x16 is free for this (AAPCS64, 6.1.1)."""
    return struct.pack("<IIQ", 0x58000050, 0xD61F0200, address)


class Machine(NamedTuple):
    """One processor."""

    name: str
    rows: Mapping[int, Relocation]
    stub: Callable[[int], bytes] | None
    """Code that jumps to any address; None if nothing outside can be called."""
    harmless: frozenset[int] = frozenset()
    """Section types that are marked writable but hold nothing that code writes."""
    unloaded: tuple[str, ...] = ()
    """Beginnings of the names of sections that are allocated but no part of the image, such as
    memory that a launch reserves."""


UNWIND_INFORMATION: Final = 0x70000001
MACHINES: Final = {
    62: Machine("x86-64", X86_64, x86_64_stub, frozenset({UNWIND_INFORMATION})),
    183: Machine("AArch64", AARCH64, aarch64_stub, frozenset()),
}
"""By the number in the header."""

ENTRIES: Final = frozenset(
    {RelocationValue.ENTRY, RelocationValue.ENTRY_PAGE, RelocationValue.ENTRY_ABSOLUTE}
)


def needs_stub(machine: Machine, kind: int) -> bool:
    """True if a relocation against an undefined symbol goes through a stub, as a call does."""
    return machine.rows[kind].value is RelocationValue.CALL


def needs_address_entry(machine: Machine, kind: int) -> bool:
    """True if a relocation refers to the symbol's entry in the address table."""
    return machine.rows[kind].value in ENTRIES


def relocate(
    machine: Machine,
    memory: bytearray,
    base: int,
    site: Site,
    *,
    addresses: Sequence[int],
    stubs: Mapping[int, int],
    entries: Mapping[int, int],
) -> None:
    """Fill in one place of an image that will lie at `base`. Raises RelocationError."""
    row = machine.rows[site.kind]
    place = base + site.offset
    symbol = addresses[site.symbol]
    if row.value in ENTRIES:
        symbol = base + entries[site.symbol]
    elif row.value is RelocationValue.CALL and site.symbol in stubs:
        symbol = base + stubs[site.symbol]
    target = symbol + site.addend
    if row.value in (RelocationValue.PAGE, RelocationValue.ENTRY_PAGE):
        value = (target & PAGE_MASK) - (place & PAGE_MASK)
    elif row.value in (RelocationValue.ABSOLUTE, RelocationValue.ENTRY_ABSOLUTE):
        value = target
    else:
        value = target - place
    try:
        row.write(memory, site.offset, value)
    except RelocationError as error:
        raise RelocationError(f"{row.name}: {error}") from None
