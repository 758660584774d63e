"""Advanced Matrix Extensions (AMX): products of tiles of 16 rows of 64 bytes.

Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18. There are eight
tile registers. Operand `b` has pairs of its rows (of bytes: fours) beside one another in each row.
Registers are assigned here, by number: sums that loops carry keep one from their first store to
their last use, and operands take one from their load to their last product.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from tiny_cpu._lib import as_function, lookup
from tiny_cpu._render_clang import Clang
from tiny_cpu._render_llvm import LlvmCpu
from tiny_cpu.arch import NATIVE, Arch
from tinycore.dtype import DType, dtypes
from tinycore.errors import UnsupportedError
from tinycore.plugin import deferred
from tinycore.render.base import LinearKernel, pointer_of
from tinycore.render.llvm_types import storage_name
from tinycore.render.llvm_writer import Writer
from tinycore.render.writer import Writer as CWriter
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

Written = Callable[[UOp, int], bool]
"""Writes a node at a place in a kernel, and returns whether it did."""

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
STRATEGIES: Final = (deferred("tiny_cpu.tiles:propose"),)
"""Plans of products by tiles."""
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
    call = as_function("system_call", lookup("syscall"))
    return int(call(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)) == 0


def units_of(arch: Arch) -> tuple[MatrixUnit, ...]:
    """The units of a processor, if the system lets this process use them where it is our own."""
    known = arch.known_features
    units = [unit for name, some in UNITS.items() if name in known for unit in some]
    # A system is asked where the processor has them: elsewhere the number is another call's.
    is_usable = arch.processor != NATIVE or (units and is_permitted())
    return tuple(units) if is_usable else ()


class TileCode(ABC):
    """The tile instructions of one kernel, in its language."""

    @abstractmethod
    def instruct(self, name: str, *registers: int, memory: str = "") -> None:
        """Write an instruction on registers, and on memory if it names any."""

    @abstractmethod
    def new_frame(self) -> str:
        """Memory for the elements of a register."""

    @abstractmethod
    def address(self, index: UOp) -> str:
        """The memory that an INDEX points to."""

    @abstractmethod
    def store(self, value: UOp, memory: str) -> None:
        """Write a vector to the memory of a register."""

    @abstractmethod
    def define(self, u: UOp, memory: str) -> None:
        """Make the vector in the memory of a register the value of a node."""


class TileRegisters:
    """The registers of one kernel: which has what, and the instructions that move it."""

    def __init__(self, kernel: LinearKernel, code: TileCode) -> None:
        uops = kernel.uops
        self.code = code
        self.sums: dict[UOp, int] = {}
        """The register of each memory of sums, from its first store on."""
        self.held: dict[UOp, int] = {}
        """The register of an operand, or of a product."""
        self.ends = last_uses(uops)
        self.element_reads = element_reads(uops)
        self.vectors = {s for u in uops if u.op is not Op.MATRIX for s in u.src}
        """Values that something else than a product reads."""
        self.free = list(range(REGISTERS))
        self.leaving: dict[int, list[int]] = {}
        self.carried = frozenset(sums_of(uops))

    def write(self, u: UOp, place: int) -> bool:
        """Write what happens at a place in the kernel to tiles; False if that is all else."""
        self.free += self.leaving.pop(place - 1, [])
        match u.op:
            case Op.DEFINE_REG:
                return u in self.carried
            case Op.LOAD:
                return self.load(u, place)
            case Op.STORE if (memory := pointer_of(u.src[0])) in self.carried:
                if memory not in self.sums:
                    self.sums[memory] = self.take(self.ends[memory])
                if self.held.get(u.src[1]) != self.sums[memory]:
                    self.fill(self.sums[memory], u.src[1])
                return True
            case Op.MATRIX:
                self.multiply(u, place)
                return True
        return False

    def load(self, u: UOp, place: int) -> bool:
        """A tile, into a register of its own; elements of a sum, by way of memory."""
        if (number := self.sums.get(pointer_of(u.src[0]))) is not None:
            self.held[u] = number
            self.read_elements(u, place)
            return True
        if u not in self.ends or u in self.vectors or not is_tile(u):
            return False
        number = self.held[u] = self.take(self.ends[u])
        self.code.instruct("tileloadd64", number, memory=self.code.address(u.src[0]))
        return True

    def multiply(self, u: UOp, place: int) -> None:
        """A product of tiles, added to a register."""
        total = self.held.get(u.src[2])
        if total is None:
            total = self.take(self.ends.get(u, place))
            self.fill(total, u.src[2])
        self.code.instruct(u.arg.name, total, *map(self.operand, u.src[:2]))
        self.held[u] = total
        self.read_elements(u, place)

    def operand(self, value: UOp) -> int:
        """The register of an operand; one that is no tile in memory goes there first."""
        if value not in self.held:
            self.held[value] = self.take(self.ends[value])
            self.fill(self.held[value], value)
        return self.held[value]

    def read_elements(self, u: UOp, place: int) -> None:
        """Make the elements of a register a vector, if anything reads them from this place on."""
        if place in self.element_reads:
            memory = self.code.new_frame()
            self.code.instruct("tilestored64", self.held[u], memory=memory)
            self.code.define(u, memory)

    def fill(self, number: int, value: UOp) -> None:
        """Set a register to a vector."""
        if value.src and all(s.op is Op.CONST and s.arg == 0 for s in value.src):
            self.code.instruct("tilezero", number)
            return
        memory = self.code.new_frame()
        self.code.store(value, memory)
        self.code.instruct("tileloadd64", number, memory=memory)

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


def sums_of(uops: tuple[UOp, ...]) -> Iterator[UOp]:
    """The registers of the kernel that products are stored to, each once."""
    stores = [u for u in uops if u.op is Op.STORE and u.src[1].op is Op.MATRIX]
    found = (pointer_of(u.src[0]) for u in stores)
    return iter(dict.fromkeys(memory for memory in found if memory.op is Op.DEFINE_REG))


def last_uses(uops: tuple[UOp, ...]) -> dict[UOp, int]:
    """For each operand of a product, each memory of sums and each sum that no memory carries, the
    last position at which it is used.

    One that is loaded, or first stored to, outside of a loop is used until the loop ends.
    """
    made: dict[UOp, int] = {}
    opened: list[int] = []
    loops: list[tuple[int, int]] = []
    uses: dict[UOp, int] = {}
    sums = frozenset(sums_of(uops))
    for place, u in enumerate(uops):
        if u not in sums:
            made.setdefault(u, place)
        if u.op in (Op.LOAD, Op.STORE) and (memory := pointer_of(u.src[0])) in sums:
            made.setdefault(memory, place)
            uses[memory] = place
        if u.op is Op.RANGE:
            opened.append(place)
        elif u.op is Op.END:
            loops.append((opened.pop(), place))
        elif u.op is Op.MATRIX:
            uses |= dict.fromkeys(u.src[:2], place)
    for place, u in reversed(tuple(enumerate(uops))):
        total = u.src[2] if u.op is Op.MATRIX else u.src[1] if u.op is Op.STORE else u
        if u.op in (Op.MATRIX, Op.STORE) and total.op is Op.MATRIX:  # in the same register
            uses[total] = max(uses.get(total, place), uses.get(u, place))
    return {
        value: max([last, *(end for start, end in loops if made[value] < start < last < end)])
        for value, last in uses.items()
    }


class LlvmTiles(TileCode):
    """Tile instructions as intrinsics of LLVM."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.registers = TileRegisters(writer.kernel, self)
        text = "".join(f"\\{byte:02X}" for byte in CONFIGURATION)
        constant = f'@tiles = private constant [{len(CONFIGURATION)} x i8] c"{text}", align 64'
        writer.declarations[constant] = None

    def write(self, u: UOp, place: int) -> bool:
        """Write a node by tile instructions; False if it is written as any other."""
        self.writer.values.setdefault(u, "")  # tiles have no name
        return self.registers.write(u, place)

    def instruct(self, name: str, *registers: int, memory: str = "") -> None:
        """A call that yields nothing."""
        places = [f"ptr {memory}", *([f"i64 {ROW_BYTES}"] if registers else [])] if memory else []
        arguments = [*(f"i8 {number}" for number in registers), *places]
        kinds = ", ".join(argument.split()[0] for argument in arguments)
        self.writer.declarations.setdefault(f"declare void @llvm.x86.{name}({kinds})")
        self.writer.line(f"call void @llvm.x86.{name}({', '.join(arguments)})")

    def new_frame(self) -> str:
        """An alloca at the head of the function."""
        name = f"%{self.writer.fresh('tile')}"
        self.writer.entry.append(f"  {name} = alloca [{TILE_BYTES} x i8], align 64")
        return name

    def address(self, index: UOp) -> str:
        """The pointer of an INDEX."""
        return self.writer[index]

    def store(self, value: UOp, memory: str) -> None:
        """Write a vector to the memory of a register."""
        kind = storage_name(value.dtype)
        self.writer.line(f"store {kind} {self.writer[value]}, ptr {memory}, align 64")

    def define(self, u: UOp, memory: str) -> None:
        """Load the vector."""
        text = f"load {storage_name(u.dtype)}, ptr {memory}, align 64"
        self.writer.values[u] = self.writer.add(text, "load")


@dataclass(frozen=True)
class LlvmAmx(LlvmCpu):
    """LLVM IR for a CPU with AMX, whose instructions name tile registers by number."""

    def write_body(self, writer: Writer, written: Written | None = None) -> None:
        """Write every node, products and what they read and add to by tile instructions."""
        if not any(u.op is Op.MATRIX for u in writer.kernel.uops):
            super().write_body(writer, written)
            return
        code = LlvmTiles(writer)
        code.instruct("ldtilecfg", memory="@tiles")
        super().write_body(writer, code.write)
        code.instruct("tilerelease")


class ClangTiles(TileCode):
    """Tile instructions as builtins of clang."""

    def __init__(self, dialect: Clang, writer: CWriter) -> None:
        self.dialect = dialect
        self.writer = writer
        self.registers = TileRegisters(writer.kernel, self)
        text = ", ".join(map(str, CONFIGURATION))
        writer.define(f"static const _Alignas(64) unsigned char tiles[] = {{{text}}};")

    def write(self, u: UOp, place: int) -> bool:
        """Write a node by tile instructions; False if it is written as any other."""
        self.writer.texts.setdefault(u, "")  # tiles have no name
        return self.registers.write(u, place)

    def instruct(self, name: str, *registers: int, memory: str = "") -> None:
        """A call that yields nothing."""
        places = [f"(void *)({memory})", *([str(ROW_BYTES)] if registers else [])] if memory else []
        arguments = ", ".join([*map(str, registers), *places])
        self.writer.line(f"__builtin_ia32_{BUILTINS.get(name, name)}({arguments});")

    def new_frame(self) -> str:
        """An array in the block that is being written."""
        name = self.writer.fresh("tile")
        self.writer.line(f"_Alignas(64) unsigned char {name}[{TILE_BYTES}];")
        return name

    def address(self, index: UOp) -> str:
        """The pointer of an INDEX."""
        return self.dialect.lanes("{pointer}", index, dtypes.uint8, self.writer)

    def store(self, value: UOp, memory: str) -> None:
        """Write a vector to the memory of a register."""
        kind = self.writer.type(value.dtype)
        self.writer.line(f"*({kind} *){memory} = {self.writer[value]};")

    def define(self, u: UOp, memory: str) -> None:
        """Load the vector into a variable, before the register changes."""
        name = self.writer.texts[u] = self.writer.fresh("vec")
        self.writer.declare(u.dtype, name, f"*({self.writer.type(u.dtype)} *){memory}")


BUILTINS: Final = {"ldtilecfg": "tile_loadconfig"}
"""Names of builtins that differ from those of instructions."""


class ClangAmx(Clang):
    """C for a CPU with AMX."""

    def write_body(self, writer: CWriter, written: Written | None = None) -> None:
        """Write every node, products and what they read and add to by tile instructions."""
        if not any(u.op is Op.MATRIX for u in writer.kernel.uops):
            super().write_body(writer, written)
            return
        code = ClangTiles(self, writer)
        code.instruct("ldtilecfg", memory="tiles")
        super().write_body(writer, code.write)
        code.instruct("tilerelease")


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
        is_kept = u.op is Op.STORE and pointer_of(u.src[0]).op is Op.DEFINE_REG
        if u.op is not Op.MATRIX and not is_kept:
            found.update(last[s] for s in u.src if s in last)
        if u.op in (Op.LOAD, Op.MATRIX):
            last[u] = place
    return found
