"""Decode machine code of RDNA3 (ISA, chapter 15: microcode formats); RDNA4 is in rdna4.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from emulation.faults import SyntaxFault

from emulator.opcodes import NAMES, WITH_CARRY

LITERAL: Final = 255
DPP16: Final = 250
DPP8: Final = (233, 234)
FIRST_VGPR: Final = 256
NULL: Final = 124
WITH_CONSTANT: Final = frozenset({"v_fmamk_f32", "v_fmaak_f32", "v_fmamk_f16", "v_fmaak_f16"})
"""VOP2 that a constant always follows."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: its encoding, name, length in bytes, and fields."""

    address: int
    encoding: str
    name: str
    size: int
    words: tuple[int, ...]
    sources: tuple[int, ...] = ()
    """Operand codes; 256 and more are vector registers."""
    destination: int = NULL
    second: int = NULL
    """The scalar destination of a carry, or the data register of memory instructions."""
    literal: int = 0
    immediate: int = 0
    """simm16, or the offset of a memory instruction."""
    absolute: int = 0
    negated: int = 0
    select: int = 0
    """opsel: bit i chooses the upper half of source i, bit 3 that of the destination."""
    select_high: int = 0
    """opsel_hi of packed instructions; neg_hi is in `absolute`."""
    clamp: bool = False
    scale: int = 0
    """omod: 1 doubles, 2 multiplies by four, 3 halves."""
    lanes: int | None = None
    """The word of DPP; None without."""
    parts: int | None = None
    """The word of SDWA, which chooses parts of registers; None without."""
    clears_upper: bool = False
    """True if 16 bits are as before RDNA: those of a source are the lower ones, and a result
    clears the upper ones."""
    flags: int = 0
    """glc of memory instructions; sve of scratch."""
    partner: Instruction | None = None
    """The second half of a pair (VOPD)."""

    def __str__(self) -> str:
        words = " ".join(f"{word:08x}" for word in self.words)
        return f"{self.name} at {self.address:#x} ({words})"


def bits(word: int, high: int, low: int) -> int:
    """A field of a word."""
    return word >> low & (1 << (high - low + 1)) - 1


def signed(value: int, width: int) -> int:
    """A field as two's complement."""
    return value - (1 << width) if value >> (width - 1) else value


def encoding_of(word: int) -> str:
    """The encoding that the first word of an instruction states."""
    if bits(word, 31, 23) in (0x17D, 0x17E, 0x17F):
        return {0x17D: "SOP1", 0x17E: "SOPC", 0x17F: "SOPP"}[bits(word, 31, 23)]
    if bits(word, 31, 28) == 0xB:
        return "SOPK"
    if bits(word, 31, 30) == 2:
        return "SOP2"
    if bits(word, 31, 31) == 0:
        return {0x3E: "VOPC", 0x3F: "VOP1"}.get(bits(word, 31, 25), "VOP2")
    if bits(word, 31, 24) == 0xCC:
        return "VOP3P"
    six = {0x32: "VOPD", 0x35: "VOP3", 0x36: "DS", 0x37: "FLAT", 0x38: "MUBUF", 0x3D: "SMEM"}
    found = six.get(bits(word, 31, 26))
    if found is None:
        raise SyntaxFault(f"{word:#010x} begins no instruction that this emulator knows")
    return found


class Decoder:
    """The words of one instruction of RDNA3."""

    names: ClassVar[Mapping[str, Mapping[int, str]]] = NAMES
    """Names of instructions by encoding and number."""
    with_carry: ClassVar[frozenset[int]] = WITH_CARRY
    """Numbers of VOP3 whose second destination is a scalar register."""
    lanes: ClassVar[int] = 32
    """Lanes of a wave."""
    long_constant: ClassVar[int] = 19
    """The number of s_setreg_imm32_b32, which a literal follows."""

    def __init__(self, code: bytes, address: int) -> None:
        self.code, self.address = code, address
        self.place = 0
        self.literal = 0

    def word(self) -> int:
        """The next word."""
        if self.place + 4 > len(self.code):
            raise SyntaxFault(f"the code ends in an instruction at {self.address:#x}")
        self.place += 4
        return int.from_bytes(self.code[self.place - 4 : self.place], "little")

    def decode(self) -> Instruction:
        """The instruction."""
        first = self.word()
        encoding = self.encoding_of(first)
        found: dict[str, object] = getattr(self, encoding.lower())(first)
        encoding = str(found.pop("encoding", encoding))
        number = found.pop("number")
        assert isinstance(number, int)
        name = self.names["VOPDX" if encoding == "VOPD" else encoding].get(number)
        if name is None:
            raise SyntaxFault(f"{encoding} {number} at {self.address:#x} is no known instruction")
        words = [self.code[i : i + 4] for i in range(0, self.place, 4)]
        return Instruction(
            self.address,
            encoding,
            name,
            self.place,
            tuple(int.from_bytes(w, "little") for w in words),
            literal=self.literal,
            **found,  # type: ignore[arg-type]
        )

    def encoding_of(self, word: int) -> str:
        """The encoding that the first word states."""
        return encoding_of(word)

    def extra(self, sources: tuple[int, ...]) -> dict[str, object]:
        """Sources, with the literal or the DPP word that the first one asks for."""
        if LITERAL in sources:
            self.literal = self.word()
        elif sources and sources[0] == DPP16:
            lanes = self.word()
            absolute = bits(lanes, 21, 21) | bits(lanes, 23, 23) << 1
            negated = bits(lanes, 20, 20) | bits(lanes, 22, 22) << 1
            sources = (FIRST_VGPR + bits(lanes, 7, 0), *sources[1:])
            return {"sources": sources, "lanes": lanes, "absolute": absolute, "negated": negated}
        elif sources and sources[0] in DPP8:
            lanes = self.word()
            is_fi = sources[0] == DPP8[1]
            sources = (FIRST_VGPR + bits(lanes, 7, 0), *sources[1:])
            return {"sources": sources, "lanes": lanes | 1 << 40 | is_fi << 41}
        return {"sources": sources}

    # --- scalar

    def sop1(self, word: int) -> dict[str, object]:
        """One source."""
        found = self.extra((bits(word, 7, 0),))
        return {**found, "number": bits(word, 15, 8), "destination": bits(word, 22, 16)}

    def sop2(self, word: int) -> dict[str, object]:
        """Two sources."""
        found = self.extra((bits(word, 7, 0), bits(word, 15, 8)))
        return {**found, "number": bits(word, 29, 23), "destination": bits(word, 22, 16)}

    def sopc(self, word: int) -> dict[str, object]:
        """Compare two sources."""
        return {**self.extra((bits(word, 7, 0), bits(word, 15, 8))), "number": bits(word, 22, 16)}

    def sopk(self, word: int) -> dict[str, object]:
        """A constant of 16 bits."""
        number = bits(word, 27, 23)
        if number == self.long_constant:
            self.literal = self.word()
        return {
            "number": number,
            "destination": bits(word, 22, 16),
            "immediate": signed(bits(word, 15, 0), 16),
        }

    def sopp(self, word: int) -> dict[str, object]:
        """No operands: branches, waits, the end."""
        return {"number": bits(word, 22, 16), "immediate": signed(bits(word, 15, 0), 16)}

    def smem(self, word: int) -> dict[str, object]:
        """Loads into scalar registers."""
        second = self.word()
        return {
            "number": bits(word, 25, 18),
            "destination": bits(word, 12, 6),
            "sources": (bits(word, 5, 0) * 2, bits(second, 31, 25)),
            "immediate": signed(bits(second, 20, 0), 21),
        }

    # --- vector

    def vop1(self, word: int) -> dict[str, object]:
        """One source."""
        found = self.extra((bits(word, 8, 0),))
        return {**found, "number": bits(word, 16, 9), "destination": bits(word, 24, 17)}

    def vop2(self, word: int) -> dict[str, object]:
        """Two sources, the second a vector register; or a constant as the third."""
        number = bits(word, 30, 25)
        found = self.extra((bits(word, 8, 0), FIRST_VGPR + bits(word, 16, 9)))
        if self.names["VOP2"].get(number) in WITH_CONSTANT and found["sources"][0] != LITERAL:  # type: ignore[index]
            self.literal = self.word()
        return {**found, "number": number, "destination": bits(word, 24, 17)}

    def vopc(self, word: int) -> dict[str, object]:
        """Compare; the result goes to VCC, or to EXEC."""
        found = self.extra((bits(word, 8, 0), FIRST_VGPR + bits(word, 16, 9)))
        return {**found, "number": bits(word, 24, 17), "destination": 106}

    def vop3(self, word: int) -> dict[str, object]:
        """Three sources and modifiers."""
        second, number = self.word(), bits(word, 25, 16)
        found = self.extra((bits(second, 8, 0), bits(second, 17, 9), bits(second, 26, 18)))
        lanes_negated = found.pop("negated", 0)
        lanes_absolute = found.pop("absolute", 0)
        assert isinstance(lanes_negated, int)
        assert isinstance(lanes_absolute, int)
        fields: dict[str, object] = {
            "number": number,
            "destination": bits(word, 7, 0),
            "clamp": bool(bits(word, 15, 15)),
            "negated": bits(second, 31, 29) | lanes_negated,
            "scale": bits(second, 28, 27),
        }
        if number in self.with_carry:
            return {**found, **fields, "second": bits(word, 14, 8)}
        absolute = bits(word, 10, 8) | lanes_absolute
        return {**found, **fields, "absolute": absolute, "select": bits(word, 14, 11)}

    def vop3p(self, word: int) -> dict[str, object]:
        """Packed: two halves of each source."""
        second = self.word()
        found = self.extra((bits(second, 8, 0), bits(second, 17, 9), bits(second, 26, 18)))
        return {
            **found,
            "number": bits(word, 22, 16),
            "destination": bits(word, 7, 0),
            "clamp": bool(bits(word, 15, 15)),
            "select": bits(word, 13, 11),
            "select_high": bits(second, 28, 27) | bits(word, 14, 14) << 2,
            "absolute": bits(word, 10, 8),
            "negated": bits(second, 31, 29),
        }

    def vopd(self, word: int) -> dict[str, object]:
        """Two instructions at once: X, and Y as its partner."""
        second = self.word()
        x, y = bits(word, 25, 22), bits(word, 21, 17)
        x_sources = (bits(word, 8, 0), FIRST_VGPR + bits(word, 16, 9))
        y_sources = (bits(second, 8, 0), FIRST_VGPR + bits(second, 16, 9))
        x_target = bits(second, 31, 24)
        y_target = bits(second, 23, 17) * 2 + (1 - (x_target & 1))
        needs = {self.names["VOPDX"].get(x, "")[-9:], self.names["VOPDY"].get(y, "")[-9:]}
        if LITERAL in (x_sources[0], y_sources[0]) or needs & {"fmaak_f32", "fmamk_f32"}:
            self.literal = self.word()
        name = self.names["VOPDY"].get(y)
        if name is None:
            raise SyntaxFault(f"VOPD {y} at {self.address:#x} is no known instruction")
        partner = Instruction(
            self.address, "VOPD", name, 0, (), y_sources, y_target, literal=self.literal
        )
        return {
            "number": x,
            "sources": x_sources,
            "destination": x_target,
            "partner": partner,
        }

    # --- memory

    def ds(self, word: int) -> dict[str, object]:
        """Shared memory: address, two data registers, two offsets."""
        second = self.word()
        return {
            "number": bits(word, 25, 18),
            "immediate": bits(word, 15, 0),
            "destination": bits(second, 31, 24),
            "sources": (bits(second, 7, 0), bits(second, 15, 8), bits(second, 23, 16)),
            "flags": bits(word, 17, 17),
        }

    def flat(self, word: int) -> dict[str, object]:
        """FLAT, SCRATCH and GLOBAL: address, scalar address, data."""
        second = self.word()
        encoding = ("FLAT", "SCRATCH", "GLOBAL")[bits(word, 17, 16)]
        return {
            "encoding": encoding,
            "number": bits(word, 24, 18),
            "immediate": signed(bits(word, 12, 0), 13),
            "destination": bits(second, 31, 24),
            "sources": (bits(second, 7, 0), bits(second, 22, 16), bits(second, 15, 8)),
            "flags": bits(word, 14, 14) | bits(second, 23, 23) << 1,
        }

    def mubuf(self, word: int) -> dict[str, object]:
        """Buffers; only the invalidation of caches is known."""
        self.word()
        return {"number": bits(word, 25, 18)}


def decode(code: bytes, address: int = 0, decoder: type[Decoder] = Decoder) -> Instruction:
    """The instruction at the beginning of some code. Raises SyntaxFault."""
    return decoder(code, address).decode()
