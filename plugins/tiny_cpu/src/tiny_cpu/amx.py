"""Advanced Matrix Extensions (AMX): products of tiles of 16 rows of 64 bytes, in LLVM IR.

Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18. There are eight
tile registers. Operand `b` has pairs of its rows (of bytes: fours) beside one another in each row.
Registers are assigned here, by number: sums that loops carry keep one for the whole kernel, and
operands take one from their load to their last product.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from tiny_cpu._render_llvm import LlvmCpu
from tiny_cpu.arch import NATIVE, Arch
from tinycore.dtype import DType, dtypes
from tinycore.errors import UnsupportedError
from tinycore.render.base import LinearKernel, pointer_of
from tinycore.render.llvm_types import storage_name
from tinycore.render.llvm_writer import Writer
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

ROWS: Final = 16
ROW_BYTES: Final = 64
TILE_BYTES: Final = ROWS * ROW_BYTES
REGISTERS: Final = 8
CONFIGURATION: Final = bytes(
    [1, *[0] * 15, *[ROW_BYTES, 0] * REGISTERS, *[0] * 16, *[ROWS] * REGISTERS, *[0] * 8]
)
"""Palette 1, then for each register the bytes of a row (16 bits), then its rows: SDM, LDTILECFG."""
ARCH_REQ_XCOMP_PERM: Final = 0x1023
XFEATURE_XTILEDATA: Final = 18
SYS_ARCH_PRCTL: Final = 158
"""Linux gives a process the registers only if it asks (Documentation/arch/x86/xstate.rst)."""


def tile_unit(name: str, a: DType, b: DType, out: DType) -> MatrixUnit:
    """A unit of AMX: 16 x 16 sums, and 64 bytes along the sum."""
    along = [f"k{1 << bit}" for bit in range((ROW_BYTES // a.itemsize).bit_length() - 1)]
    beside = (4 // a.itemsize).bit_length() - 1
    columns = [*along[:beside], "n1 n2 n4 n8", *along[beside:]]
    return MatrixUnit(
        name=name,
        m=ROWS,
        n=ROWS,
        k=ROW_BYTES // a.itemsize,
        a=a,
        b=b,
        out=out,
        threads=1,
        a_map=f"| {' '.join(along)} m1 m2 m4 m8",
        b_map=f"| {' '.join(columns)}",
        out_map="| n1 n2 n4 n8 m1 m2 m4 m8",
    )


UNITS: Final = {
    "amx-bf16": (tile_unit("tdpbf16ps", dtypes.bfloat16, dtypes.bfloat16, dtypes.float32),),
    "amx-int8": (
        tile_unit("tdpbssd", dtypes.int8, dtypes.int8, dtypes.int32),
        tile_unit("tdpbsud", dtypes.int8, dtypes.uint8, dtypes.int32),
        tile_unit("tdpbusd", dtypes.uint8, dtypes.int8, dtypes.int32),
        tile_unit("tdpbuud", dtypes.uint8, dtypes.uint8, dtypes.int32),
    ),
}
"""By the feature of a processor."""


@cache
def is_permitted() -> bool:
    """True if the system lets this process use tile registers, for which it asks."""
    if not sys.platform.startswith("linux"):
        return False
    call = ctypes.CDLL(None).syscall
    return int(call(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)) == 0


def units_of(arch: Arch) -> tuple[MatrixUnit, ...]:
    """The units of a processor, if the system lets this process use them where it is our own."""
    if arch.processor == NATIVE and not is_permitted():
        return ()
    known = arch.known_features
    return tuple([unit for name, units in UNITS.items() if name in known for unit in units])


class TileWriter(Writer):
    """The text of a kernel with products of tiles: which register has what."""

    def __init__(self, kernel: LinearKernel) -> None:
        super().__init__(kernel)
        uops = kernel.uops
        self.sums = {memory: number for number, memory in enumerate(sums_of(uops))}
        self.held: dict[UOp, int] = {}
        """The register of an operand, or of a product."""
        self.ends = last_uses(uops)
        self.element_reads = element_reads(uops)
        self.vectors = {s for u in uops if u.op is not Op.MATRIX for s in u.src}
        """Values that something else than a product reads."""
        self.place = 0
        self.free = list(range(len(self.sums), REGISTERS))
        self.leaving: dict[int, list[int]] = {}
        self.stored: dict[int, str] = {}
        """Memory of the frame for a register whose elements are read, or come from elsewhere."""
        configuration = "".join(f"\\{byte:02X}" for byte in CONFIGURATION)
        constant = f'@tiles = private constant [{len(CONFIGURATION)} x i8] c"{configuration}"'
        self.declarations[f"{constant}, align 64"] = None

    def instruct(self, name: str, *arguments: str) -> None:
        """Call an intrinsic that yields nothing."""
        kinds = ", ".join(argument.split()[0] for argument in arguments)
        self.declarations.setdefault(f"declare void @llvm.x86.{name}({kinds})")
        self.line(f"call void @llvm.x86.{name}({', '.join(arguments)})")

    def take(self, until: int) -> int:
        """A register until a position. Raises UnsupportedError if there is none."""
        if not self.free:
            raise UnsupportedError(
                f"a kernel needs more than the {REGISTERS} tile registers of AMX: NOOPT=1 makes a "
                "plan without them"
            )
        number = self.free.pop(0)
        self.leaving.setdefault(until, []).append(number)
        return number

    def frame(self, number: int) -> str:
        """Memory for the elements of a register."""
        if number not in self.stored:
            self.stored[number] = f"%tile{number}"
            self.entry.append(f"  %tile{number} = alloca [{TILE_BYTES} x i8], align 64")
        return self.stored[number]

    def elements(self, number: int, dtype: DType) -> str:
        """The elements of a register as a vector."""
        place = self.frame(number)
        self.instruct("tilestored64", f"i8 {number}", f"ptr {place}", f"i64 {ROW_BYTES}")
        return self.add(f"load {storage_name(dtype)}, ptr {place}, align 64", "load")

    def fill(self, number: int, value: UOp) -> None:
        """Set a register to a vector."""
        if all(s.op is Op.CONST and s.arg == 0 for s in value.src) and value.src:
            self.instruct("tilezero", f"i8 {number}")
            return
        place = self.frame(number)
        self.line(f"store {storage_name(value.dtype)} {self[value]}, ptr {place}, align 64")
        self.instruct("tileloadd64", f"i8 {number}", f"ptr {place}", f"i64 {ROW_BYTES}")


def sums_of(uops: tuple[UOp, ...]) -> Iterator[UOp]:
    """The registers of the kernel that products are stored to, each once."""
    stores = [u for u in uops if u.op is Op.STORE and u.src[1].op is Op.MATRIX]
    found = (pointer_of(u.src[0]) for u in stores)
    return iter(dict.fromkeys(memory for memory in found if memory.op is Op.DEFINE_REG))


def last_uses(uops: tuple[UOp, ...]) -> dict[UOp, int]:
    """For each operand of a product the last position at which it is read.

    One that is loaded outside of a loop is read until the loop ends.
    """
    made: dict[UOp, int] = {}
    opened: list[int] = []
    loops: list[tuple[int, int]] = []
    uses: dict[UOp, int] = {}
    for place, u in enumerate(uops):
        made.setdefault(u, place)
        if u.op is Op.RANGE:
            opened.append(place)
        elif u.op is Op.END:
            loops.append((opened.pop(), place))
        elif u.op is Op.MATRIX:
            uses |= dict.fromkeys(u.src[:2], place)
    return {
        operand: max([last, *(end for start, end in loops if made[operand] < start < last < end)])
        for operand, last in uses.items()
    }


@dataclass(frozen=True)
class LlvmAmx(LlvmCpu):
    """LLVM IR for a CPU with AMX, whose instructions name tile registers by number."""

    def render(self, kernel: LinearKernel) -> str:
        """The source text of a kernel."""
        if not any(u.op is Op.MATRIX for u in kernel.uops):
            return super().render(kernel)
        writer = TileWriter(kernel)
        writer.instruct("ldtilecfg", "ptr @tiles")
        for writer.place, u in enumerate(kernel.uops):
            self.write(u, writer)
            writer.free += writer.leaving.pop(writer.place, [])
        writer.instruct("tilerelease")
        return self.assemble(writer)

    def write_memory(self, u: UOp, writer: Writer) -> None:
        """Nothing for sums of tiles."""
        if not isinstance(writer, TileWriter) or u not in writer.sums:
            super().write_memory(u, writer)
            return
        writer.values[u] = ""

    def write_load(self, u: UOp, writer: Writer) -> None:
        """A tile, into a register of its own; elements of a sum, by way of memory."""
        if not isinstance(writer, TileWriter):
            super().write_load(u, writer)
        elif (number := writer.sums.get(pointer_of(u.src[0]))) is not None:
            writer.held[u], writer.values[u] = number, ""
            if writer.place in writer.element_reads:
                writer.values[u] = writer.elements(number, u.dtype)
        elif u in writer.ends and u not in writer.vectors and is_tile(u):
            number = writer.held[u] = writer.take(writer.ends[u])
            writer.values[u] = ""
            place = f"ptr {writer[u.src[0]]}"
            writer.instruct("tileloadd64", f"i8 {number}", place, f"i64 {ROW_BYTES}")
        else:
            super().write_load(u, writer)

    def write_store(self, u: UOp, writer: Writer) -> None:
        """Nothing for a product, which is in its register already."""
        tiles = writer if isinstance(writer, TileWriter) else None
        number = None if tiles is None else tiles.sums.get(pointer_of(u.src[0]))
        if tiles is None or number is None:
            super().write_store(u, writer)
        elif tiles.held.get(u.src[1]) != number:
            tiles.fill(number, u.src[1])

    def matrix_sum(self, u: UOp, writer: Writer) -> str:
        """A product of tiles, added to a register."""
        assert isinstance(writer, TileWriter)
        total = writer.held.get(u.src[2])
        if total is None:
            total = writer.take(len(writer.kernel.uops))
            writer.fill(total, u.src[2])
        operands = [self.operand(s, writer) for s in u.src[:2]]
        writer.instruct(u.arg.name, *(f"i8 {number}" for number in (total, *operands)))
        writer.held[u] = total
        return writer.elements(total, u.dtype) if writer.place in writer.element_reads else ""

    def operand(self, value: UOp, writer: TileWriter) -> int:
        """The register of an operand; one that is no tile in memory goes there first."""
        if value not in writer.held:
            writer.held[value] = writer.take(writer.ends[value])
            writer.fill(writer.held[value], value)
        return writer.held[value]


def is_tile(load: UOp) -> bool:
    """True if a LOAD is a tile whose rows lie one behind the other."""
    return len(load.src) == 1 and load.dtype.size_bytes == TILE_BYTES


def element_reads(uops: tuple[UOp, ...]) -> set[int]:
    """Positions of sums whose elements something but a product reads, before they come again.

    A register of the kernel is one node wherever it is loaded, in a loop and behind it.
    """
    last: dict[UOp, int] = {}
    found: set[int] = set()
    for place, u in enumerate(uops):
        is_kept = u.op is Op.MATRIX or (u.op is Op.STORE and u.src[1].op is Op.MATRIX)
        if not is_kept:
            found.update(last[s] for s in u.src if s in last)
        if u.op in (Op.LOAD, Op.MATRIX):
            last[u] = place
    return found
