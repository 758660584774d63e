"""PM4: packets of the command processor, as tables of numbers, and commands made of them.

Linux, drivers/gpu/drm/amd/amdgpu/nvd.h and gc_11_0_0_offset.h. A packet is a header and its body,
words of 32 bits; addresses take two, the low half first.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from tiny_hcq import Number, halves

if TYPE_CHECKING:
    from tiny_amd.generation import Generation

__all__ = ["CacheControl", "Opcode", "Register", "length_of", "packet"]

TYPE_3: Final = 3 << 30
COUNT_BITS: Final = 0x3FFF


class Opcode(IntEnum):
    """Packets."""

    NOP = 0x10
    DISPATCH_DIRECT = 0x15
    WAIT_REG_MEM = 0x3C
    INDIRECT_BUFFER = 0x3F
    EVENT_WRITE = 0x46
    RELEASE_MEM = 0x49
    ACQUIRE_MEM = 0x58
    SET_SH_REG = 0x76


class Register(IntEnum):
    """Registers of a dispatch, as SET_SH_REG counts them."""

    DISPATCH_INITIATOR = 0x200
    START_X = 0x204
    NUM_THREAD_X = 0x207
    PGM_LO = 0x20C
    DISPATCH_SCRATCH_BASE_LO = 0x210
    PGM_RSRC1 = 0x212
    PGM_RSRC2 = 0x213
    RESOURCE_LIMITS = 0x215
    TMPRING_SIZE = 0x218
    RESTART_X = 0x21B
    PGM_RSRC3 = 0x228
    PGM_RSRC3_CDNA = 0x22D
    USER_DATA_0 = 0x240


class CacheControl(IntEnum):
    """GCR_CNTL of ACQUIRE_MEM: what is written back, and what is forgotten."""

    GLI_INV = 1
    """Instructions; bits 1:0, all of them."""
    GLM_WB = 1 << 4
    GLM_INV = 1 << 5
    GLK_WB = 1 << 6
    GLK_INV = 1 << 7
    """Scalar loads."""
    GLV_INV = 1 << 8
    """Vector loads of a compute unit."""
    GL1_INV = 1 << 9
    GL2_INV = 1 << 14
    GL2_WB = 1 << 15


ACQUIRED: Final = (
    CacheControl.GLI_INV
    | CacheControl.GLM_INV
    | CacheControl.GLK_INV
    | CacheControl.GLV_INV
    | CacheControl.GL1_INV
    | CacheControl.GL2_INV
    | CacheControl.GL2_WB
)
"""So that what others have written is seen: all is forgotten, what is dirty written first."""

# RELEASE_MEM, first word: the event at the end of the pipe, and the caches that are written back.
_FLUSH_AND_INVALIDATE: Final = 0x14 | 5 << 8
RELEASED: Final = 1 << 12 | 1 << 13 | 1 << 14 | 1 << 15 | 1 << 20 | 1 << 21
"""GLM_WB, GLM_INV, GLV_INV, GL1_INV, GL2_INV, GL2_WB."""
_DATA_LOW, _DATA_WHOLE, _DATA_CLOCK = 1 << 29, 2 << 29, 3 << 29
_INTERRUPT_AFTER_WRITE: Final = 2 << 24

_PARTIAL_FLUSH: Final = 0x07 | 4 << 8
"""EVENT_WRITE: go on when all waves of the dispatches before have ended."""
_MEMORY_AT_LEAST: Final = 5 | 1 << 4
"""WAIT_REG_MEM: poll memory until it is at least the reference."""
_POLL_INTERVAL: Final = 4
_WHOLE: Final = (1 << 32) - 1
EVERYTHING: Final = (_WHOLE, 0xFF, 0, 0)
"""Size and base of all memory, in ACQUIRE_MEM."""
_BUFFER_VALID: Final = 1 << 23
LARGEST_BUFFER: Final = (1 << 20) - 1
"""Words of an indirect buffer."""
LARGEST_GROUP_DIMENSION: Final = 0xFFFF

# DISPATCH_INITIATOR
_SHADER_ENABLED: Final = 1 << 0
_START_AT_ZERO: Final = 1 << 2
_WAVES_OF_32: Final = 1 << 15


def packet(opcode: Opcode, *body: Number) -> tuple[Number, ...]:
    """A packet with its header."""
    return (TYPE_3 | (len(body) - 1) << 16 | opcode << 8, *body)


def length_of(header: int) -> int:
    """Words of a packet, its header included."""
    count = header >> 16 & COUNT_BITS
    return 1 if count == COUNT_BITS else count + 2


def set_registers(first: Register, *values: Number) -> tuple[Number, ...]:
    """Registers side by side."""
    return packet(Opcode.SET_SH_REG, int(first), *values)


def acquire(generation: Generation) -> tuple[Number, ...]:
    """Wait until launches before have ended; see what they and others have written: all memory."""
    return (
        *packet(Opcode.EVENT_WRITE, _PARTIAL_FLUSH),
        *packet(Opcode.ACQUIRE_MEM, *generation.acquired),
    )


def release(generation: Generation, address: Number, value: Number) -> tuple[Number, ...]:
    """Write 64 bits after all before has ended and is visible to everyone."""
    event = _FLUSH_AND_INVALIDATE | generation.released
    return packet(Opcode.RELEASE_MEM, event, _DATA_WHOLE, *halves(address), *halves(value), 0)


def release_clock(address: Number) -> tuple[Number, ...]:
    """Write the card's clock after all before has ended."""
    return packet(Opcode.RELEASE_MEM, _FLUSH_AND_INVALIDATE, _DATA_CLOCK, *halves(address), 0, 0, 0)


def interrupt(generation: Generation, mailbox: int, event: int) -> tuple[Number, ...]:
    """Signal an event: its id into its mailbox, then an interrupt, which may carry the id."""
    selected = _DATA_LOW | _INTERRUPT_AFTER_WRITE
    context = event if generation.interrupt_names_event else 0
    return packet(
        Opcode.RELEASE_MEM, _FLUSH_AND_INVALIDATE, selected, *halves(mailbox), event, 0, context
    )


def wait_at_least(address: Number, value: Number) -> tuple[Number, ...]:
    """Go on when the 32 bits at an address are at least a value."""
    low, _ = halves(value)
    return packet(
        Opcode.WAIT_REG_MEM, _MEMORY_AT_LEAST, *halves(address), low, _WHOLE, _POLL_INTERVAL
    )


def indirect_buffer(address: int, words: int) -> tuple[Number, ...]:
    """Execute the words at an address."""
    return packet(Opcode.INDIRECT_BUFFER, *halves(address), words | _BUFFER_VALID)


def dispatch(groups: tuple[Number, ...], wave: int) -> tuple[Number, ...]:
    """Launch groups of what the registers describe, in waves of so many, beside those before."""
    initiator = _SHADER_ENABLED | _START_AT_ZERO | (_WAVES_OF_32 if wave == 32 else 0)
    return packet(Opcode.DISPATCH_DIRECT, *groups, initiator)
