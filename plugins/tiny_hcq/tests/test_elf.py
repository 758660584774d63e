"""The ELF loader: every relocation's arithmetic, compiled objects that run, and damaged files.

Objects are built here byte by byte, so nothing depends on a compiler; those that run real compilers
skip where there is none.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import mmap
import platform
import random
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tiny_hcq.elf import ElfImage
from tiny_hcq.elf_file import HEADER, RELOCATION, SECTION, SYMBOL
from tinycore.errors import FileFormatError, TinycoreError

X86_64, AARCH64 = 62, 183
BASE = 0x7F00_0000_0000

Relocation = tuple[int, int, int, int]  # offset, type, symbol, addend
"""Symbols: 1 is `kernel` at 0 of .text, 2 is `data` at 8 of .rodata, 3 is `outside`, undefined."""


def make_object(
    machine: int = X86_64,
    text: bytes = bytes(64),
    rodata: bytes = bytes(32),
    relocations: tuple[Relocation, ...] = (),
    flags: int = 0x2,
) -> bytes:
    """A relocatable object with a .text, a .rodata, and relocations in .text."""
    names = b"\0.text\0.rodata\0.rela.text\0.symtab\0.strtab\0"
    strings = b"\0kernel\0data\0outside\0"
    symbols = b"".join(
        SYMBOL.pack(*fields)
        for fields in (
            (0, 0, 0, 0, 0, 0),
            (1, 0x12, 0, 1, 0, len(text)),
            (8, 0x11, 0, 2, 8, 8),
            (13, 0x10, 0, 0, 0, 0),
        )
    )
    table = b"".join(
        RELOCATION.pack(offset, symbol << 32 | kind, addend)
        for offset, kind, symbol, addend in relocations
    )
    contents = [text, rodata, table, symbols, strings, names]
    offsets, at = [], HEADER.size
    for content in contents:
        offsets.append(at)
        at += len(content)
    rows = [
        (0,) * 10,
        (1, 1, 0x6, 0, offsets[0], len(text), 0, 0, 16, 0),
        (7, 1, flags, 0, offsets[1], len(rodata), 0, 0, 16, 0),
        (15, 4, 0x40, 0, offsets[2], len(table), 4, 1, 8, 24),
        (26, 2, 0, 0, offsets[3], len(symbols), 5, 2, 8, 24),
        (34, 3, 0, 0, offsets[4], len(strings), 0, 0, 1, 0),
        (34, 3, 0, 0, offsets[5], len(names), 0, 0, 1, 0),
    ]
    head = HEADER.pack(
        b"\x7fELF\x02\x01\x01" + bytes(9), 1, machine, 1, 0, 0, at, 0, 64, 0, 0, 64, len(rows), 6
    )
    return head + b"".join(contents) + b"".join(SECTION.pack(*row) for row in rows)


def word(image: bytes, offset: int) -> int:
    found: int = struct.unpack_from("<I", image, offset)[0]
    return found


# Layout


def test_sections_symbols_and_size() -> None:
    image = ElfImage(make_object(text=b"\xc3" * 20))

    assert image.symbols == {"kernel": 0, "data": 32 + 8}
    assert image.size == 64
    assert image.place(BASE)[:20] == b"\xc3" * 20


def test_what_is_called_from_outside_is_resolved_by_name() -> None:
    image = ElfImage(make_object(relocations=((0, 1, 3, 5),)))

    assert image.undefined == ("outside",)
    placed = image.place(BASE, {"outside": 0x1234}.__getitem__)
    assert struct.unpack_from("<Q", placed)[0] == 0x1234 + 5


def test_a_symbol_that_nobody_knows_is_named() -> None:
    image = ElfImage(make_object(relocations=((0, 1, 3, 0),)), name="sum_64")

    nothing: dict[str, int] = {}
    for resolve in (None, nothing.__getitem__, lambda name: 0):
        with pytest.raises(FileFormatError, match="sum_64 calls 'outside', which is not known"):
            image.place(BASE, resolve)


# x86-64 relocations

DATA, KERNEL = 64 + 8, 0
PLACE = 4


@pytest.mark.parametrize(
    ("kind", "symbol", "addend", "value"),
    [
        (2, 2, -4, DATA - 4 - PLACE),  # PC32
        (4, 1, -4, KERNEL - 4 - PLACE),  # PLT32
        (24, 2, 0, DATA - PLACE),  # PC64
        (1, 2, 1, BASE + DATA + 1),  # 64
    ],
)
def test_x86_relocation(kind: int, symbol: int, addend: int, value: int) -> None:
    image = ElfImage(make_object(relocations=((PLACE, kind, symbol, addend),)))
    width = "<q" if kind in (1, 24) else "<i"

    assert struct.unpack_from(width, image.place(BASE), PLACE)[0] == value


def test_an_absolute_address_of_32_bits_works_low_and_is_refused_high() -> None:
    image = ElfImage(make_object(relocations=((PLACE, 11, 2, 0),)))

    assert word(image.place(0x10000), PLACE) == 0x10000 + DATA
    with pytest.raises(FileFormatError) as raised:
        image.place(BASE)
    assert str(raised.value) == (
        "object is no ELF object that can be loaded: R_X86_64_32S: 0x7f0000000048 does not fit "
        "into "
        "4 bytes (symbol 'data')"
    )


def test_a_call_far_away_goes_through_a_stub() -> None:
    image = ElfImage(make_object(relocations=((1, 4, 3, -4), (9, 4, 3, -4))))
    placed = image.place(BASE, lambda name: 0x1234_5678_9ABC)
    (distance,) = struct.unpack_from("<i", placed, 1)
    stub = 1 + 4 + distance

    assert image.size == 64 + 32 + 16
    assert placed[stub : stub + 6] == b"\xff\x25\0\0\0\0"
    assert struct.unpack_from("<Q", placed, stub + 6)[0] == 0x1234_5678_9ABC


@pytest.mark.parametrize("kind", [9, 41, 42])
def test_an_address_table_entry(kind: int) -> None:
    image = ElfImage(make_object(relocations=((PLACE, kind, 3, -4),)))
    placed = image.place(BASE, lambda name: 0x1234_5678_9ABC)
    (distance,) = struct.unpack_from("<i", placed, PLACE)

    assert struct.unpack_from("<Q", placed, PLACE + 4 + distance)[0] == 0x1234_5678_9ABC


# AArch64 relocations


def arm(kind: int, instruction: int, symbol: int = 2, addend: int = 0, base: int = BASE) -> int:
    """The instruction at 4 of .text after one relocation."""
    text = bytes(4) + struct.pack("<I", instruction) + bytes(56)
    image = ElfImage(make_object(AARCH64, text, relocations=((PLACE, kind, symbol, addend),)))
    return word(image.place(base, lambda name: 0x1234_5678_9ABC), PLACE)


def test_arm_call_inside_the_object() -> None:
    assert arm(283, 0x94000000, symbol=1) == 0x94000000 | (-PLACE >> 2 & 0x3FFFFFF)


def test_arm_call_far_away_goes_through_a_stub() -> None:
    image = ElfImage(
        make_object(AARCH64, struct.pack("<I", 0x94000000) * 16, relocations=((0, 283, 3, 0),))
    )
    placed = image.place(BASE, lambda name: 0x1234_5678_9ABC)
    stub = (word(placed, 0) & 0x3FFFFFF) * 4

    assert [word(placed, stub), word(placed, stub + 4)] == [0x58000050, 0xD61F0200]
    assert struct.unpack_from("<Q", placed, stub + 8)[0] == 0x1234_5678_9ABC


def test_arm_page_and_offset() -> None:
    # The page of `data` + 0x5000 is 5 pages on: low 2 bits at 29, the rest at 5.
    assert arm(275, 0x90000000, addend=0x5000) == 0x90000000 | 1 << 29 | 1 << 5
    assert arm(275, 0x90000000, addend=-0x1000) == 0x90000000 | 3 << 29 | 0x7FFFF << 5
    assert arm(277, 0x91000000, addend=3) == 0x91000000 | (DATA + 3) << 10


@pytest.mark.parametrize(("kind", "shift"), [(278, 0), (284, 1), (285, 2), (286, 3)])
def test_arm_load_offset_counts_in_units_of_the_access(kind: int, shift: int) -> None:
    assert arm(kind, 0xB9400000) == 0xB9400000 | (DATA >> shift) << 10


def test_arm_load_offset_of_16_bytes() -> None:
    assert arm(299, 0x3DC00000, addend=8) == 0x3DC00000 | (DATA + 8 >> 4) << 10
    with pytest.raises(FileFormatError, match="LDST128_ABS_LO12_NC: 0x48 is not a multiple of 16"):
        arm(299, 0x3DC00000)


def test_arm_data() -> None:
    assert arm(261, 0) == DATA - PLACE
    assert arm(257, 0) == (BASE + DATA) & 0xFFFFFFFF
    assert arm(260, 0) == DATA - PLACE


def test_arm_address_table_entry() -> None:
    page, load = arm(311, 0x90000000, symbol=3), arm(312, 0xF9400000, symbol=3)

    assert page == 0x90000000  # the same page
    assert load == 0xF9400000 | (96 >> 3) << 10


def test_arm_branch_too_far() -> None:
    with pytest.raises(FileFormatError, match="R_AARCH64_CALL26: 0x8000044 is too far away"):
        arm(283, 0x94000000, addend=1 << 27)


# What is refused


def test_an_unknown_relocation_is_named() -> None:
    with pytest.raises(FileFormatError) as raised:
        ElfImage(make_object(relocations=((0, 99, 3, 0),)), name="kernel.o")

    assert str(raised.value) == (
        "kernel.o is no ELF object that can be loaded: relocation type 99 of x86-64 is unknown "
        "(symbol 'outside')"
    )


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "the header takes bytes 0 to 64, the file has 0"),
        (bytes(100), "it does not start as a 64-bit little-endian ELF file"),
        (make_object(machine=40), "machine 40 is neither x86-64 (62) nor AArch64 (183)"),
        (make_object(flags=0x3), "it has writable data, which a kernel must not"),
        (make_object(flags=0x402), "it has thread-local data"),
        (make_object(relocations=((62, 2, 2, 0),)), "a relocation at 62 lies outside its section"),
        (make_object(relocations=((0, 2, 9, 0),)), "a relocation names symbol 9 of 4"),
        (make_object()[:-1], "the section table takes bytes "),
    ],
)
def test_what_cannot_be_loaded_is_told(data: bytes, problem: str) -> None:
    with pytest.raises(FileFormatError) as raised:
        ElfImage(data)

    assert str(raised.value).startswith(f"object is no ELF object that can be loaded: {problem}")


def test_an_executable_is_no_object() -> None:
    data = bytearray(make_object())
    data[16] = 2

    with pytest.raises(FileFormatError, match="its type is 2, and 1 \\(relocatable\\) is needed"):
        ElfImage(bytes(data))


def load_anything(data: bytes) -> None:
    """Loading either works or raises one of our own errors."""
    try:
        ElfImage(data).place(BASE, lambda name: BASE)
    except TinycoreError:
        return


@pytest.mark.parametrize("machine", [X86_64, AARCH64])
def test_cut_off_files(machine: int) -> None:
    data = make_object(machine, relocations=((0, 4 if machine == X86_64 else 283, 3, -4),))
    for size in range(len(data)):
        load_anything(data[:size])


@pytest.mark.parametrize("machine", [X86_64, AARCH64])
def test_damaged_files(machine: int) -> None:
    rng = random.Random(machine)
    good = make_object(machine, relocations=((0, 4 if machine == X86_64 else 283, 3, -4),))
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 5))):
            data[rng.randrange(len(data))] = rng.choice(
                (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
            )
        load_anything(bytes(data))


# Compilers

SOURCE = """
extern double sin(double);
extern float expf(float);
static const float table[4] = {1, 2, 3, 4};
static const float *const pointers[2] = {table, table + 1};
static double helper(double x) __attribute__((noinline));
static double helper(double x) { return sin(x) * 2; }
double kernel(double x, int i) {
  switch (i) {
    case 0: return helper(x); case 1: return table[i]; case 2: return *pointers[i & 1];
    case 3: return expf(x); case 4: return i * 7.5; case 5: return x - 1; default: return -1;
  }
}
"""


def compile_object(compiler: str, folder: Path, *flags: str) -> bytes:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    (folder / "kernel.c").write_text(SOURCE)
    command = [compiler, "-O2", "-ffreestanding", "-c", "kernel.c", "-o", "kernel.o", *flags]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "kernel.o").read_bytes()


def libm(name: str) -> int:
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def callable_kernel(data: bytes) -> Callable[[float, int], float]:
    """The kernel of an object, loaded into this process."""
    image = ElfImage(data)
    memory = mmap.mmap(-1, image.size, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    memory[: image.size] = image.place(base, libm)
    kind = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_int)
    function = kind(base + image.symbols["kernel"])

    def kernel(x: float, i: int) -> float:
        assert memory
        return float(function(x, i))

    return kernel


native = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="objects for this system are not ELF",
)


@native
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("flags", [(), ("-fPIC",), ("-fno-plt", "-fPIC"), ("-O0",)], ids=str)
def test_a_compiled_object_runs(compiler: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    if compiler == "clang" and "-fno-plt" in flags:
        pytest.skip("clang has no such option everywhere")
    pic = flags if "-fPIC" in flags else (*flags, "-fPIC")
    kernel = callable_kernel(compile_object(compiler, tmp_path, *pic))

    assert kernel(0.5, 0) == pytest.approx(math.sin(0.5) * 2)
    assert [kernel(0.5, 1), kernel(0.5, 2)] == [2, 1]
    assert kernel(0.5, 3) == pytest.approx(math.exp(0.5), rel=1e-6)
    assert [kernel(0.5, 4), kernel(0.5, 5), kernel(0.5, 9)] == [30, -0.5, -1]


MODULE = """
declare double @sin(double)
@table = private constant [2 x double] [double 3.0, double 4.0]
define double @kernel(double %x, i32 %i) {
  %at = getelementptr [2 x double], ptr @table, i64 0, i32 %i
  %value = load double, ptr %at
  %sine = call double @sin(double %x)
  %sum = fadd double %value, %sine
  ret double %sum
}
"""


def llvm_object(triple: str) -> bytes:
    llvm = pytest.importorskip("llvmlite.binding")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple).create_target_machine(reloc="pic", codemodel="small")
    module = llvm.parse_assembly(MODULE)
    module.triple = triple
    found: bytes = target.emit_object(module)
    return found


@native
def test_an_object_of_llvm_runs() -> None:
    kernel = callable_kernel(llvm_object(f"{platform.machine()}-none-elf"))

    assert kernel(1.0, 1) == pytest.approx(4 + math.sin(1.0))


@pytest.mark.parametrize("triple", ["x86_64-none-elf", "aarch64-none-elf"])
def test_objects_of_llvm_for_both_processors_are_placed(triple: str) -> None:
    image = ElfImage(llvm_object(triple))

    assert image.undefined == ("sin",)
    assert len(image.place(BASE, lambda name: BASE)) == image.size
