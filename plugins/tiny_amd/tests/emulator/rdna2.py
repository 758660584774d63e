"""RDNA2 (gfx1030): what it encodes otherwise than RDNA3.

AMD, "RDNA 2 Instruction Set Architecture" (2020), chapters 3, 4 and 13. An instruction that
computes what one of RDNA3 does is called as that one is. Short encodings name whole registers, of
which values of 16 bits are the lower half; SDWA chooses parts, and there are no pairs (VOPD).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from emulation.faults import SyntaxFault

from emulator import cdna3
from emulator import rdna2_opcodes as opcodes
from emulator.cdna3 import SDWA, chosen_parts, compared_parts, finish_parts, reordered, table
from emulator.decode import NULL, Decoder, Instruction, bits, signed
from emulator.opcodes import names as numbered
from emulator.state import M0

SWAPPED: Final = {124: M0, 125: NULL}
"""Codes of M0 and of the register that is none: RDNA3 has them the other way round."""
NO_ADDRESS: Final = 0x7F
"""The scalar address of scratch without any register; without a scalar one it is NULL."""
RENAMED: Final = {
    "s_waitcnt": "s_waitcnt_gfx10",
    "s_inst_prefetch": "s_set_inst_prefetch_distance",
    "v_dot2c_f32_f16": "v_dot2acc_f32_f16",
    "v_fma_legacy_f32": "v_fma_dx9_zero_f32",
    "v_fmac_legacy_f32": "v_fmac_dx9_zero_f32",
    **{
        f"v_cvt_pknorm_{kind}_{source}": f"v_cvt_pk_norm_{kind}_{source}"
        for kind in ("i16", "u16")
        for source in ("f16", "f32")
    },
}
"""Operations that RDNA3 has under other names, and CDNA3 under none of its own."""
VOP3_OF: Final = {"VOPC": 0, "VOP2": 0x100, "VOP1": 0x180}
"""Distance of a short encoding's numbers in VOP3."""


def renamed(name: str) -> str:
    """The name by which RDNA3 knows an operation of RDNA2."""
    return RENAMED.get(name) or cdna3.renamed(name.replace("_tru_", "_t_"))


def tables() -> dict[str, dict[int, str]]:
    """Names by encoding and number."""
    plain = ("SOP1", "SOP2", "SOPC", "SOPK", "SOPP", "SMEM", "VOP1", "VOP2", "VOPC", "VOP3P", "DS")
    found = {encoding: table(getattr(opcodes, encoding), renamed) for encoding in (*plain, "MUBUF")}
    found["SOP2"] = {k: v.replace("n2_b", "_not1_b") for k, v in found["SOP2"].items()}
    for space in ("global", "flat", "scratch"):
        text = opcodes.GLOBAL.replace("global", space)
        found[space.upper()] = table(text, renamed)
    found["VOP3"] = {
        number + first: name
        for short, first in VOP3_OF.items()
        for number, name in found[short].items()
    }
    found["VOP3"] |= table(opcodes.VOP3, renamed) | table(opcodes.VOP3SD, renamed)
    return found


def swapped(found: dict[str, object]) -> dict[str, object]:
    """A scalar destination as RDNA3 numbers it."""
    code = found["destination"]
    assert isinstance(code, int)
    return {**found, "destination": SWAPPED.get(code, code)}


class Rdna2Decoder(Decoder):
    """The words of one instruction of RDNA2."""

    names: ClassVar[Mapping[str, Mapping[int, str]]] = tables()
    with_carry: ClassVar[frozenset[int]] = frozenset({*range(296, 299), *numbered(opcodes.VOP3SD)})
    long_constant: ClassVar[int] = 21

    def decode(self) -> Instruction:
        """The instruction; operands of compare-and-store are in the order of RDNA3."""
        return reordered(super().decode())

    def encoding_of(self, word: int) -> str:
        """There are no pairs; interpolation, in their place, is of pixels."""
        found = super().encoding_of(word)
        if found == "VOPD":
            raise SyntaxFault(f"{word:#010x} interpolates, which kernels that compute do not")
        return found

    def extra(self, sources: tuple[int, ...]) -> dict[str, object]:
        """Sources, with the literal, or the word of DPP or SDWA, that the first one asks for."""
        if sources and sources[0] == SDWA:
            return chosen_parts(self.word(), sources)
        return super().extra(tuple(SWAPPED.get(code, code) for code in sources))

    # --- scalar

    def sop1(self, word: int) -> dict[str, object]:
        """One source."""
        return swapped(super().sop1(word))

    def sop2(self, word: int) -> dict[str, object]:
        """Two sources."""
        return swapped(super().sop2(word))

    def sopk(self, word: int) -> dict[str, object]:
        """A constant of 16 bits; one of 32 has a literal."""
        return swapped(super().sopk(word))

    def smem(self, word: int) -> dict[str, object]:
        """Loads into scalar registers."""
        found = super().smem(word)
        sources = found["sources"]
        assert isinstance(sources, tuple)
        return {**found, "sources": tuple(SWAPPED.get(code, code) for code in sources)}

    # --- vector

    def vop1(self, word: int) -> dict[str, object]:
        """One source."""
        return self.whole("VOP1", finish_parts(super().vop1(word)))

    def vop2(self, word: int) -> dict[str, object]:
        """Two sources."""
        return self.whole("VOP2", finish_parts(super().vop2(word)))

    def vop3(self, word: int) -> dict[str, object]:
        """Three sources and modifiers."""
        found = super().vop3(word)
        carried = found.get("second")
        if isinstance(carried, int):
            found["second"] = SWAPPED.get(carried, carried)
        return found

    def vopc(self, word: int) -> dict[str, object]:
        """Compare; SDWA may name another scalar register."""
        return self.whole("VOPC", compared_parts(super().vopc(word)))

    def whole(self, encoding: str, found: dict[str, object]) -> dict[str, object]:
        """An operation on 16 bits as VOP3 writes it, which names whole registers."""
        number = found["number"]
        assert isinstance(number, int)
        name = self.names[encoding].get(number, "")
        if "16" not in name or name.startswith(("v_dot", "v_pk")):
            return found
        return {**found, "encoding": "VOP3", "number": number + VOP3_OF[encoding]}

    # --- memory

    def flat(self, word: int) -> dict[str, object]:
        """FLAT, SCRATCH and GLOBAL; the first cache bit of an atomic asks for the old value."""
        second = self.word()
        scalar = bits(second, 22, 16)
        has_vector = scalar == 125
        return {
            "encoding": ("FLAT", "SCRATCH", "GLOBAL")[bits(word, 15, 14)],
            "number": bits(word, 24, 18),
            "immediate": signed(bits(word, 11, 0), 12),
            "destination": bits(second, 31, 24),
            "sources": (
                bits(second, 7, 0),
                NULL if scalar == NO_ADDRESS else SWAPPED.get(scalar, scalar),
                bits(second, 15, 8),
            ),
            "flags": bits(word, 16, 16) | has_vector << 1,
        }

    def mubuf(self, word: int) -> dict[str, object]:
        """Buffers; only the invalidation of caches is known."""
        self.word()
        return {"number": bits(word, 24, 18)}


def counts_waited_for(immediate: int) -> tuple[int, int]:
    """Counters of s_waitcnt: loads (vmcnt), and accesses of LDS, still under way."""
    return bits(immediate, 3, 0) | bits(immediate, 15, 14) << 4, bits(immediate, 13, 8)
