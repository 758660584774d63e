"""PM4: the packets that the command processor of an Adreno 6xx reads, as words of 32 bits.

Type 4 writes consecutive registers, type 7 is an operation. Both headers carry odd parity over the
count, and over the register or the operation.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Event", "Op", "StateBlock", "StateKind", "StateSource", "operation", "parity", "write"]

TYPE_4: Final = 0x4000_0000
TYPE_7: Final = 0x7000_0000
MOST_REGISTERS: Final = 0x7F
MOST_OPERANDS: Final = 0x3FFF


class Op:
    """Operations of type 7."""

    NOP: Final = 0x10
    WAIT_MEM_WRITES: Final = 0x12
    WAIT_FOR_IDLE: Final = 0x26
    RUN_OPENCL: Final = 0x31
    EXEC_CS: Final = 0x33
    LOAD_STATE: Final = 0x34
    WAIT_REG_MEM: Final = 0x3C
    MEM_WRITE: Final = 0x3D
    REG_TO_MEM: Final = 0x3E
    EVENT_WRITE: Final = 0x46
    SET_MARKER: Final = 0x65


class Event:
    """Events of EVENT_WRITE."""

    CACHE_FLUSH_TS: Final = 4
    CACHE_INVALIDATE: Final = 0x31


class StateKind:
    """State type of LOAD_STATE. Among textures, SHADER are samplers, CONSTANTS are textures."""

    SHADER: Final = 0
    CONSTANTS: Final = 1
    UAV: Final = 3


class StateSource:
    """State source of LOAD_STATE."""

    DIRECT: Final = 0
    INDIRECT: Final = 2


class StateBlock:
    """Whose state LOAD_STATE loads."""

    CS_TEXTURES: Final = 0x5
    CS_SHADER: Final = 0xD


MARKER_COMPUTE: Final = 8
WAIT_MEMORY_AT_LEAST: Final = 5 | 1 << 4
"""WAIT_REG_MEM: until the word in memory is at least the reference."""
COUNTER_64_BITS: Final = 1 << 30
"""REG_TO_MEM: two registers as one number."""


def parity(value: int) -> int:
    """The bit that makes the number of ones odd."""
    return 1 - value.bit_count() % 2


def operation(opcode: int, operands: int) -> int:
    """The header of an operation with so many operands."""
    assert 0 <= operands <= MOST_OPERANDS, f"{operands} operands do not fit a packet"
    return TYPE_7 | operands | parity(operands) << 15 | opcode << 16 | parity(opcode) << 23


def write(register: int, count: int) -> int:
    """The header of a write to `count` registers from one on."""
    assert 0 < count <= MOST_REGISTERS, f"{count} registers do not fit a packet"
    return TYPE_4 | count | parity(count) << 7 | register << 8 | parity(register) << 27


def state(kind: int, source: int, block: int, units: int, offset: int = 0) -> int:
    """The first operand of LOAD_STATE."""
    return offset | kind << 14 | source << 16 | block << 18 | units << 22
