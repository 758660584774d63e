"""PTX under construction: kinds of registers, operands as text, and the lines of one kernel."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tinycore.dtype import DType, Scalar, dtypes
from tinycore.errors import UnsupportedError
from tinycore.render.base import LinearKernel
from tinycore.render.literals import as_stored
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = [
    "ACCESS_LANES",
    "BFLOAT",
    "DOUBLE",
    "FLOAT",
    "HALF",
    "INT",
    "LONG",
    "PREDICATE",
    "UINT",
    "ULONG",
    "WORD_BYTES",
    "Kind",
    "Lanes",
    "Text",
    "braced",
    "by_access",
    "later",
    "operand",
    "vector",
    "zero_of",
]

WORD_BYTES: Final = 4
ACCESS_LANES: Final = 4
"""Most registers that one instruction loads or stores: cards before Blackwell move 16 bytes."""

Lanes = tuple[str, ...]
"""The registers or immediates of a value, one for each lane."""


@dataclass(frozen=True)
class Kind:
    """Registers of a type's values: the letters of their names, and the types in instructions."""

    register: str
    declared: str
    bits: str
    """As bits: b32."""
    arithmetic: str
    """As numbers: s32."""
    memory: str
    """In memory: u8."""


FLOAT: Final = Kind("%f", ".f32", "b32", "f32", "f32")
DOUBLE: Final = Kind("%d", ".f64", "b64", "f64", "f64")
HALF: Final = Kind("%h", ".b16", "b16", "f16", "b16")
BFLOAT: Final = Kind("%r", ".b32", "b32", "u32", "u16")
"""bfloat16, which is converted alone: as its bits."""
PREDICATE: Final = Kind("%p", ".pred", "pred", "pred", "u8")
INT: Final = Kind("%r", ".b32", "b32", "s32", "s32")
UINT: Final = Kind("%r", ".b32", "b32", "u32", "u32")
LONG: Final = Kind("%q", ".b64", "b64", "s64", "s64")
ULONG: Final = Kind("%q", ".b64", "b64", "u64", "u64")
KINDS: Final[Mapping[DType, Kind]] = {
    dtypes.bool: PREDICATE,
    dtypes.int8: Kind("%r", ".b32", "b32", "s32", "s8"),
    dtypes.uint8: Kind("%r", ".b32", "b32", "u32", "u8"),
    dtypes.int16: Kind("%r", ".b32", "b32", "s32", "s16"),
    dtypes.uint16: Kind("%r", ".b32", "b32", "u32", "u16"),
    dtypes.int32: INT,
    dtypes.uint32: UINT,
    dtypes.int64: LONG,
    dtypes.uint64: ULONG,
    dtypes.float16: HALF,
    dtypes.bfloat16: BFLOAT,
    dtypes.float32: FLOAT,
    dtypes.float64: DOUBLE,
}


class Text:
    """The text of one kernel while it grows: registers, labels, lines and where values are."""

    def __init__(self, kernel: LinearKernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.counts: dict[tuple[str, str], int] = {}
        self.values: dict[UOp, Lanes] = {}
        self.arrays: list[str] = []
        """Declarations of local memory."""
        self.loops: list[tuple[str, str, str, bool]] = []
        """Label, counter, end and whether the end is tested first, of each open loop."""
        self.ranges: list[UOp] = []
        """The loops that are open."""
        self.addresses: list[dict[tuple[UOp, UOp], str]] = [{}]
        """Addresses that were computed in each open loop, to be used again inside of it."""
        self.labels = 0
        self.multiplied = {n for u in kernel.uops if u.op is Op.MATRIX for n in factors_of(u)}
        """Factors of matrix instructions, which are held in registers of 32 bits."""
        self.packed: dict[Lanes, str] = {}
        """Words that were loaded, by their lanes."""

    def register(self, kind: Kind) -> str:
        """A new register."""
        key = (kind.register, kind.declared)
        number = self.counts.get(key, 0)
        self.counts[key] = number + 1
        return f"{kind.register}{number}"

    def put(self, text: str) -> None:
        """Add an instruction."""
        self.lines.append(f"  {text};")

    def new(self, kind: Kind, instruction: str, *operands: str) -> str:
        """The register that an instruction writes."""
        target = self.register(kind)
        self.put(f"{instruction} {', '.join((target, *operands))}")
        return target

    def label(self) -> str:
        """A new place to branch to."""
        self.labels += 1
        return f"L{self.labels}"

    def kind(self, dtype: DType) -> Kind:
        """Registers of a scalar type's values."""
        scalar = dtype.scalar()
        if scalar is dtypes.index:
            return INT if self.kernel.index_bits == 32 else LONG
        if scalar not in KINDS:
            raise UnsupportedError(f"PTX has no registers for {scalar!r}; cast to float32")
        return KINDS[scalar]

    def constant(self, dtype: DType, value: Scalar) -> str:
        """An immediate; halves and predicates have none, and get a register."""
        if dtype is dtypes.bool:
            return self.new(PREDICATE, "setp.ne.u32", str(int(bool(value))), "0")
        if dtype is dtypes.float32:
            return f"0f{struct.pack('>f', as_stored(dtype, float(value))).hex()}"
        if dtype is dtypes.float64:
            return f"0d{struct.pack('>d', float(value)).hex()}"
        if dtype is dtypes.float16:
            bits = struct.pack(">e", as_stored(dtype, float(value))).hex()
            return self.new(HALF, "mov.b16", f"0x{bits}")
        return str(int(value))


def factors_of(matrix: UOp) -> list[UOp]:
    """Factors of a MATRIX, with the vectors and elements that they are assembled from."""
    together = (Op.MATRIX, Op.VECTORIZE, Op.EXTRACT)
    return UOp.sink(*matrix.src[:2]).toposort(lambda n: n.op in together or n.op is Op.SINK)


def operand(base: str, offset: int) -> str:
    """A memory operand."""
    return f"[{base}+{offset}]" if offset else f"[{base}]"


def by_access(words: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    """Registers by the instruction that moves them, with its place in bytes: four at most."""
    for first in range(0, len(words), ACCESS_LANES):
        yield first * WORD_BYTES, words[first : first + ACCESS_LANES]


def later(place: str, offset: int) -> str:
    """A memory operand some bytes behind another."""
    if not offset:
        return place
    base, _, before = place.strip("[]").partition("+")
    return operand(base, int(before or 0) + offset)


def vector(count: int) -> str:
    """The word for so many lanes at once."""
    return f".v{count}" if count > 1 else ""


def braced(registers: Sequence[str]) -> str:
    """Registers as one operand."""
    return registers[0] if len(registers) == 1 else f"{{{', '.join(registers)}}}"


def zero_of(kind: Kind) -> str:
    """Zero as an immediate for mov."""
    return {"f32": "0f00000000", "f64": "0d0000000000000000"}.get(kind.arithmetic, "0")
