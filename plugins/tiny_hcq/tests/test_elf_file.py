"""The reader of ELF files: every kind of table, other machines, and damage in every byte."""

from __future__ import annotations

import random
import struct

import pytest

from tiny_hcq.elf import ElfImage
from tiny_hcq.elf_file import (
    HEADER,
    NO_BITS,
    RELOCATABLE,
    RELOCATION,
    RELOCATION_WITHOUT_ADDEND,
    SECTION,
    SYMBOL,
    WITH_ADDENDS,
    WITHOUT_ADDENDS,
    ElfFile,
)
from tiny_hcq.relocations import Machine, Relocation, RelocationValue, integer_writer
from tinycore.errors import FileFormatError, TinycoreError

CARD = 190
BASE = 0x7000_0000_0000
MACHINE = Machine(
    "card",
    {
        2: Relocation("R_64", RelocationValue.ABSOLUTE, 8, integer_writer(8)),
        56: Relocation("R_LOW_32", RelocationValue.ABSOLUTE, 4, integer_writer(4)),
        57: Relocation("R_RELATIVE", RelocationValue.RELATIVE, 8, integer_writer(8)),
    },
    None,
    unloaded=(".shared.",),
)


def make_object(
    kind: int = RELOCATABLE, relocation: int = 2, where: int = 16, table: int = WITH_ADDENDS
) -> bytes:
    """A file with code, 256 bytes of writable shared memory, and a table of one relocation."""
    names = b"\0.text.k\0.shared.k\0.rela.text.k\0.symtab\0.strtab\0"
    strings = b"\0k\0outside\0"
    code = bytes(40)
    symbols = SYMBOL.pack(0, 0, 0, 0, 0, 0) + SYMBOL.pack(1, 0x12, 0, 1, 8, 32)
    layout, *addend = (RELOCATION, 5) if table == WITH_ADDENDS else (RELOCATION_WITHOUT_ADDEND,)
    relocations = layout.pack(where, 1 << 32 | relocation, *addend)
    contents = [code, relocations, symbols, strings, names]
    offsets, at = [], HEADER.size
    for content in contents:
        offsets.append(at)
        at += len(content)
    text, shared, rela, symtab, strtab = (
        names.index(b"\0" + x) + 1
        for x in (b".text.", b".shared", b".rela.", b".symtab", b".strtab")
    )
    rows = [
        (0,) * 10,
        (text, 1, 0x6, 0, offsets[0], len(code), 0, 0, 128, 0),
        (shared, NO_BITS, 0x3, 0, 0, 256, 0, 0, 16, 0),
        (rela, table, 0, 0, offsets[1], len(relocations), 4, 1, 8, layout.size),
        (symtab, 2, 0, 0, offsets[2], len(symbols), 5, 1, 8, 24),
        (strtab, 3, 0, 0, offsets[3], len(strings), 0, 0, 1, 0),
        (strtab, 3, 0, 0, offsets[4], len(names), 0, 0, 1, 0),
    ]
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = HEADER.pack(identity, kind, CARD, 1, 0, 0, at, 0, 64, 0, 0, 64, len(rows), 6)
    return head + b"".join(contents) + b"".join(SECTION.pack(*row) for row in rows)


def test_header_and_sections() -> None:
    file = ElfFile(make_object(), "kernel.cubin")
    assert (file.kind, file.machine) == (RELOCATABLE, CARD)
    labels = [section.label for section in file.sections]
    assert labels[:4] == ["", ".text.k", ".shared.k", ".rela.text.k"]
    shared = file.section(".shared.k")
    assert shared is not None
    assert (shared.size, file.content(shared)) == (256, b"")
    assert file.section(".nowhere") is None


@pytest.mark.parametrize(("kind", "addend"), [(WITH_ADDENDS, 5), (WITHOUT_ADDENDS, None)])
def test_symbols_and_relocations(kind: int, addend: int | None) -> None:
    file = ElfFile(make_object(table=kind))
    symbols, table = file.section(".symtab"), file.section(".rela.text.k")
    assert symbols is not None
    assert table is not None
    assert [(s.name, s.section, s.value, s.size) for s in file.symbols(symbols)][1] == (
        "k",
        1,
        8,
        32,
    )
    (entry,) = file.relocations(table)
    assert (entry.offset, entry.kind, entry.symbol, entry.addend) == (16, 2, 1, addend)


@pytest.mark.parametrize(("kind", "value"), [(2, BASE + 8 + 5), (57, 8 + 5 - 16)])
def test_an_image_for_a_machine_that_a_plugin_states(kind: int, value: int) -> None:
    image = ElfImage(make_object(relocation=kind), "k", machines={CARD: MACHINE})
    assert image.symbols == {"k": 8}  # shared memory is no part of the image
    assert image.size == 48
    assert struct.unpack_from("<q", image.place(BASE), 16) == (value,)


def test_what_an_image_refuses_it_names() -> None:
    with pytest.raises(FileFormatError, match=r"its type is 2, and 1 \(relocatable\) is needed"):
        ElfImage(make_object(kind=2), machines={CARD: MACHINE})
    with pytest.raises(FileFormatError, match=r"machine 190 is neither x86-64 \(62\) nor AArch64"):
        ElfImage(make_object())
    with pytest.raises(FileFormatError, match=r"machine 190 is not card \(62\)"):
        ElfImage(make_object(), machines={62: MACHINE})
    with pytest.raises(FileFormatError, match="without addends"):
        ElfImage(make_object(table=WITHOUT_ADDENDS), machines={CARD: MACHINE})
    writable = MACHINE._replace(unloaded=())
    with pytest.raises(FileFormatError, match="writable data"):
        ElfImage(make_object(), machines={CARD: writable})
    with pytest.raises(FileFormatError, match="outside its section"):
        ElfImage(make_object(where=41), machines={CARD: MACHINE})
    image = ElfImage(make_object(relocation=56), machines={CARD: MACHINE})
    with pytest.raises(FileFormatError, match="does not fit into 4 bytes"):
        image.place(BASE)


def test_damage_raises_the_error_of_files_and_no_other() -> None:
    """Each byte flipped, and each length cut off, by SEED."""
    data = make_object()
    generator = random.Random(20261122)
    damaged = [data[:end] for end in range(0, len(data), 3)]
    for _ in range(2000):
        changed = bytearray(data)
        for _ in range(generator.randint(1, 4)):
            changed[generator.randrange(len(data))] = generator.choice((0, 1, 0x7F, 0xFF))
        damaged.append(bytes(changed))
    refused = 0
    for each in damaged:
        try:
            ElfImage(each, machines={CARD: MACHINE}).place(BASE)
        except TinycoreError as error:
            assert isinstance(error, FileFormatError)  # noqa: PT017  any other fails the test
            refused += 1
    assert refused > 500
