"""The reader of ELF files: every kind of table, other machines, and damage in every byte."""

from __future__ import annotations

import random
import struct

import pytest

from tiny_hcq.elf import ElfImage
from tiny_hcq.elf_file import (
    EXECUTABLE,
    HEADER,
    NO_BITS,
    NOTES,
    RELOCATION_WITHOUT_ADDEND,
    SECTION,
    SEGMENT,
    SYMBOL,
    WITHOUT_ADDENDS,
    ElfFile,
    Note,
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
    implicit_addends=True,
)


def note(owner: bytes, kind: int, content: bytes) -> bytes:
    padded = owner + b"\0" * (4 - len(owner) % 4)
    return (
        struct.pack("<III", len(owner) + 1, len(content), kind)
        + padded
        + content
        + bytes(-len(content) % 4)
    )


def make_executable(kind: int = EXECUTABLE, relocation: int = 2, where: int = 16) -> bytes:
    """A file with code, 256 bytes of writable shared memory, a note, and a .rel of one entry."""
    names = b"\0.text.k\0.shared.k\0.note\0.rel.text.k\0.symtab\0.strtab\0"
    strings = b"\0k\0outside\0"
    code = bytes(where) + struct.pack("<q", 5) + bytes(40 - where)
    symbols = SYMBOL.pack(0, 0, 0, 0, 0, 0) + SYMBOL.pack(1, 0x12, 0, 1, 8, 32)
    relocations = RELOCATION_WITHOUT_ADDEND.pack(where, 1 << 32 | relocation)
    notes = note(b"CARD", 32, b"facts") + note(b"GNU", 3, b"12345678")
    contents = [code, notes, relocations, symbols, strings, names]
    offsets, at = [], HEADER.size + SEGMENT.size
    for content in contents:
        offsets.append(at)
        at += len(content)
    at_names = [names.index(b"\0" + label) + 1 for label in (b".text.k", b".shared", b".note")]
    rel, symtab, strtab = (names.index(b"\0" + x) + 1 for x in (b".rel.", b".symtab", b".strtab"))
    rows = [
        (0,) * 10,
        (at_names[0], 1, 0x6, 0, offsets[0], len(code), 0, 0, 128, 0),
        (at_names[1], NO_BITS, 0x3, 0, 0, 256, 0, 0, 16, 0),
        (at_names[2], NOTES, 0, 0, offsets[1], len(notes), 0, 0, 4, 0),
        (rel, WITHOUT_ADDENDS, 0, 0, offsets[2], len(relocations), 5, 1, 8, 16),
        (symtab, 2, 0, 0, offsets[3], len(symbols), 6, 1, 8, 24),
        (strtab, 3, 0, 0, offsets[4], len(strings), 0, 0, 1, 0),
        (strtab, 3, 0, 0, offsets[5], len(names), 0, 0, 1, 0),
    ]
    identity = b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7)
    head = HEADER.pack(
        identity, kind, CARD, 1, 0x40, HEADER.size, at, 0x5A04, 64, 56, 1, 64, len(rows), 7
    )
    segment = SEGMENT.pack(1, 5, offsets[0], 0x1000, 0x1000, len(code), 64, 128)
    return head + segment + b"".join(contents) + b"".join(SECTION.pack(*row) for row in rows)


def test_header_sections_segments_and_notes() -> None:
    file = ElfFile(make_executable(), "kernel.cubin")
    assert (file.kind, file.machine, file.flags, file.entry) == (EXECUTABLE, CARD, 0x5A04, 0x40)
    assert (file.abi, file.abi_version) == (0x41, 8)
    labels = [section.label for section in file.sections]
    assert labels[:5] == ["", ".text.k", ".shared.k", ".note", ".rel.text.k"]
    shared = file.section(".shared.k")
    assert shared is not None
    assert (shared.size, file.content(shared)) == (256, b"")
    assert file.section(".nowhere") is None
    (segment,) = file.segments
    assert (segment.address, segment.memory_bytes) == (0x1000, 64)
    text = file.section(".text.k")
    assert text is not None
    assert file.segment_content(segment) == file.content(text)
    assert list(file.notes()) == [Note("CARD", 32, b"facts"), Note("GNU", 3, b"12345678")]


def test_symbols_and_relocations_without_addends() -> None:
    file = ElfFile(make_executable())
    symbols, table = file.section(".symtab"), file.section(".rel.text.k")
    assert symbols is not None
    assert table is not None
    assert [(s.name, s.section, s.value, s.size) for s in file.symbols(symbols)][1] == (
        "k",
        1,
        8,
        32,
    )
    (entry,) = file.relocations(table)
    assert (entry.offset, entry.kind, entry.symbol, entry.addend) == (16, 2, 1, None)


@pytest.mark.parametrize(("kind", "value"), [(2, BASE + 8 + 5), (57, 8 + 5 - 16)])
def test_an_image_for_a_machine_that_a_plugin_states(kind: int, value: int) -> None:
    data = make_executable(relocation=kind)
    image = ElfImage(data, "k", machines={CARD: MACHINE}, kinds=(EXECUTABLE,))
    assert image.symbols == {"k": 8}  # shared memory is no part of the image
    assert image.size == 48
    assert struct.unpack_from("<q", image.place(BASE), 16) == (value,)


def test_what_an_image_refuses_it_names() -> None:
    with pytest.raises(FileFormatError, match=r"its type is 2, and 1 \(relocatable\) is needed"):
        ElfImage(make_executable(), machines={CARD: MACHINE})
    with pytest.raises(FileFormatError, match=r"machine 190 is neither x86-64 \(62\) nor AArch64"):
        ElfImage(make_executable(), kinds=(EXECUTABLE,))
    other = {62: MACHINE}
    with pytest.raises(FileFormatError, match=r"machine 190 is not card \(62\)"):
        ElfImage(make_executable(), machines=other, kinds=(EXECUTABLE,))
    strict = MACHINE._replace(implicit_addends=False)
    with pytest.raises(FileFormatError, match="without addends"):
        ElfImage(make_executable(), machines={CARD: strict}, kinds=(EXECUTABLE,))
    writable = MACHINE._replace(unloaded=())
    with pytest.raises(FileFormatError, match="writable data"):
        ElfImage(make_executable(), machines={CARD: writable}, kinds=(EXECUTABLE,))
    entry, beyond = (RELOCATION_WITHOUT_ADDEND.pack(at, 1 << 32 | 2) for at in (40, 41))
    data = make_executable(where=40).replace(entry, beyond)
    with pytest.raises(FileFormatError, match="outside its section"):
        ElfImage(data, machines={CARD: MACHINE}, kinds=(EXECUTABLE,))
    image = ElfImage(make_executable(relocation=56), machines={CARD: MACHINE}, kinds=(EXECUTABLE,))
    with pytest.raises(FileFormatError, match="does not fit into 4 bytes"):
        image.place(BASE)


def test_damage_raises_the_error_of_files_and_no_other() -> None:
    """Each byte flipped, and each length cut off, by SEED."""
    data = make_executable()
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
            file = ElfFile(each)
            list(file.notes())
            for segment in file.segments:
                file.segment_content(segment)
            ElfImage(each, machines={CARD: MACHINE}, kinds=(EXECUTABLE,)).place(BASE)
        except TinycoreError as error:
            assert isinstance(error, FileFormatError)  # noqa: PT017  any other fails the test
            refused += 1
    assert refused > 500
