"""RDNA4 (gfx12): what it encodes otherwise than RDNA3, and its matrices.

AMD, "RDNA4 Instruction Set Architecture" (2025), chapters 3, 7.12 and 15. An instruction that
computes what one of RDNA3 does is called as that one is; one that differs has a name of its own.
Waits have a counter each, memory instructions three words, and a group's numbers are in ttmp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import numpy
from emulation.faults import ConvergenceFault
from emulation.numbers import bfloat_to_float, eight_bits_to_float

from emulator.decode import FIRST_VGPR, LITERAL, Decoder, Instruction, bits, signed
from emulator.opcodes import NAMES, names
from emulator.state import Array, State, Step, Who, put, read_vector, vector_word, write_vector

WITH_CONSTANT: Final = frozenset({"s_fmaak_f32", "s_fmamk_f32"})
"""Scalar operations whose constant is always a literal."""
TTMP7: Final = 115
TTMP9: Final = 117
"""Registers of a group's numbers: y and z in halves of the one, x in the other."""

CHANGED: Final = {
    "SOP2": """
        64: s_add_f32 s_sub_f32 s_min_f32 s_max_f32 s_mul_f32 s_fmaak_f32 s_fmamk_f32 s_fmac_f32
        s_cvt_pk_rtz_f16_f32 s_add_f16 s_sub_f16 s_min_f16 s_max_f16 s_mul_f16 s_fmac_f16
        83: s_add_nc_u64 s_sub_nc_u64 s_mul_u64
    """,
    "SOP1": """
        78: s_barrier_signal 96: s_ceil_f32 s_floor_f32 s_trunc_f32 s_rndne_f32 s_cvt_f32_i32
        s_cvt_f32_u32 s_cvt_i32_f32 s_cvt_u32_f32 s_cvt_f16_f32 s_cvt_f32_f16 s_cvt_hi_f32_f16
        s_ceil_f16 s_floor_f16 s_trunc_f16 s_rndne_f16
    """,
    "SOPC": """
        65: s_cmp_lt_f32 s_cmp_eq_f32 s_cmp_le_f32 s_cmp_gt_f32 s_cmp_lg_f32 s_cmp_ge_f32
        s_cmp_o_f32 s_cmp_u_f32 s_cmp_nge_f32 s_cmp_nlg_f32 s_cmp_ngt_f32 s_cmp_nle_f32
        s_cmp_neq_f32 s_cmp_nlt_f32 81: s_cmp_lt_f16 s_cmp_eq_f16 s_cmp_le_f16 s_cmp_gt_f16
        s_cmp_lg_f16 s_cmp_ge_f16 s_cmp_o_f16 s_cmp_u_f16 s_cmp_nge_f16 s_cmp_nlg_f16
        s_cmp_ngt_f16 s_cmp_nle_f16 s_cmp_neq_f16 s_cmp_nlt_f16
    """,
    "SOPP": """
        8: s_wait_alu 20: s_barrier_wait 64: s_wait_loadcnt s_wait_storecnt s_wait_samplecnt
        s_wait_bvhcnt s_wait_expcnt 70: s_wait_dscnt s_wait_kmcnt s_wait_loadcnt_dscnt
        s_wait_storecnt_dscnt
    """,
    "SMEM": "5: s_load_b96 8: s_load_i8 s_load_u8 s_load_i16 s_load_u16 16: s_buffer_load_b32",
    "VOP2": """
        2: v_add_f64 6: v_mul_f64 13: v_min_f64 v_max_f64 21: v_min_f32 v_max_f32 31: v_lshlrev_b64
        48: v_min_f16 v_max_f16
    """,
    "VOP3": """
        258: v_add_f64 262: v_mul_f64 269: v_min_f64 v_max_f64 277: v_min_f32 v_max_f32
        287: v_lshlrev_b64 304: v_min_f16 v_max_f16 553: v_min3_f32 v_max3_f32 v_min3_f16
        v_max3_f16 561: v_med3_f32 v_med3_f16 616: v_minmax_f32 v_maxmin_f32 v_minmax_f16
        v_maxmin_f16 640: v_s_exp_f32 v_s_exp_f16 v_s_log_f32 v_s_log_f16 v_s_rcp_f32 v_s_rcp_f16
        v_s_rsq_f32 v_s_rsq_f16 v_s_sqrt_f32 v_s_sqrt_f16
    """,
    "VOP3P": """
        27: v_pk_min_f16 v_pk_max_f16 64: v_wmma12_f32_f16 v_wmma12_f32_bf16
        68: v_wmma12_i32_iu8 70: v_wmma12_f32_fp8_fp8 v_wmma12_f32_fp8_bf8 v_wmma12_f32_bf8_fp8
        v_wmma12_f32_bf8_bf8
    """,
    "GLOBAL": "43: global_inv global_wb",
}
GONE: Final = {
    "SOPP": (4, 9, 10, 61),
    "SMEM": tuple(range(8, 16)),
    "VOP2": (15, 16),
    "VOP3P": (17, 18, 66, 67, 69),
    "VOP3": (*(271, 272, 537, 540, 543, 585, 588, 591, *range(606, 614), *range(807, 811), 828),),
}
"""Numbers of RDNA3 that mean nothing, or what is not known here."""


def table(encoding: str) -> dict[int, str]:
    """Names of an encoding by number."""
    kept = {k: v for k, v in NAMES[encoding].items() if k not in GONE.get(encoding, ())}
    return {**kept, **names(CHANGED.get(encoding, ""))}


class Rdna4Decoder(Decoder):
    """The words of one instruction of RDNA4."""

    names: ClassVar[Mapping[str, Mapping[int, str]]] = {
        encoding: table(encoding) for encoding in NAMES
    }

    def encoding_of(self, word: int) -> str:
        """Memory instructions have encodings of their own."""
        found = {0xEC: "FLAT", 0xED: "FLAT", 0xEE: "FLAT"}.get(bits(word, 31, 24))
        return found or super().encoding_of(word)

    def sop2(self, word: int) -> dict[str, object]:
        """Two sources; a constant as the third, or between them."""
        name = self.names["SOP2"].get(bits(word, 29, 23), "")
        if name not in WITH_CONSTANT:
            return super().sop2(word)
        a, b = bits(word, 7, 0), bits(word, 15, 8)
        found = self.extra((a, b, LITERAL) if name == "s_fmaak_f32" else (a, LITERAL, b))
        return {**found, "number": bits(word, 29, 23), "destination": bits(word, 22, 16)}

    def smem(self, word: int) -> dict[str, object]:
        """Loads into scalar registers; offsets have 24 bits."""
        second = self.word()
        return {
            "number": bits(word, 18, 13),
            "destination": bits(word, 12, 6),
            "sources": (bits(word, 5, 0) * 2, bits(second, 31, 25)),
            "immediate": signed(bits(second, 23, 0), 24),
        }

    def flat(self, word: int) -> dict[str, object]:
        """FLAT, SCRATCH and GLOBAL in three words."""
        second, third = self.word(), self.word()
        return {
            "encoding": ("FLAT", "SCRATCH", "GLOBAL")[bits(word, 31, 24) - 0xEC],
            "number": bits(word, 21, 14),
            "immediate": signed(bits(third, 31, 8), 24),
            "destination": bits(second, 7, 0),
            "sources": (bits(third, 7, 0), bits(word, 6, 0), bits(second, 30, 23)),
            "flags": bits(second, 20, 20) | bits(second, 17, 17) << 1,
        }


def waits(name: str, immediate: int) -> dict[str, int]:
    """Counters of a wait: loads of each that may be under way after it."""
    low, high = immediate & 63, immediate >> 8 & 63
    return {
        "s_wait_loadcnt": {"vm": low},
        "s_wait_storecnt": {"stores": low},
        "s_wait_dscnt": {"lgkm": low},
        "s_wait_kmcnt": {"scalar": low},
        "s_wait_loadcnt_dscnt": {"vm": high, "lgkm": low},
        "s_wait_storecnt_dscnt": {"stores": high, "lgkm": low},
    }.get(name, {})


# --- matrices

WORDS: Final = {"f16": 4, "bf16": 4, "iu8": 2, "fp8": 2, "bf8": 2}
"""Registers of A or B."""


def values_of(words: Array, kind: str, is_signed: bool) -> Array:
    """(waves, 32, words) as numbers: those of a lane along K."""
    if kind == "f16":
        return words.view(numpy.float16).astype(numpy.float64)
    if kind == "bf16":
        return bfloat_to_float(words.view(numpy.uint16)).astype(numpy.float64)
    if kind == "iu8":
        return words.view(numpy.int8 if is_signed else numpy.uint8).astype(numpy.int64)
    form = {"fp8": "e4m3", "bf8": "e5m2"}[kind]
    return eight_bits_to_float(words.view(numpy.uint8), form).astype(numpy.float64)


def operand(state: State, who: Who, code: int, kind: str, is_signed: bool) -> Array:
    """A or B as (waves, 16, 16): lane l has row or column l % 16, and of K the half l // 16."""
    registers = range(code - FIRST_VGPR, code - FIRST_VGPR + WORDS[kind])
    words = numpy.stack([vector_word(state, who, register) for register in registers], axis=2)
    values = values_of(numpy.ascontiguousarray(words), kind, is_signed)
    return numpy.concatenate([values[:, :16], values[:, 16:]], axis=2)


def signed_halves(values: Array, kind: str, instruction: Instruction, index: int) -> Array:
    """A or B of halves with the signs of its low (NEG) and its high halves (NEG_HI) changed."""
    if kind not in ("f16", "bf16"):
        return values
    signs = [
        -1.0 if word >> index & 1 else 1.0 for word in (instruction.negated, instruction.absolute)
    ]
    return values * numpy.resize(signs, values.shape[-1])


def signed_sums(values: Array, out: str, instruction: Instruction) -> Array:
    """C with its absolute value (NEG_HI), or the negative of that (NEG)."""
    if out != "f32":
        return values
    values = numpy.abs(values) if instruction.absolute >> 2 & 1 else values
    return -values if instruction.negated >> 2 & 1 else values


def matrix_step(instruction: Instruction) -> Step:
    """v_wmma_*: D = A @ B + C of 16 by 16 by 16; register r of lane l is row r + 8 * (l // 16)."""
    _, _, out, *kinds = instruction.name.split("_")
    kinds = kinds if len(kinds) == 2 else kinds * 2
    wanted = numpy.float32 if out == "f32" else numpy.int32

    def step(state: State, who: Who) -> None:
        if not (state.active if who is None else state.active[who]).all():
            raise ConvergenceFault(f"{instruction.name} needs every lane")
        a, b = (
            signed_halves(
                operand(state, who, code, kind, bool(instruction.negated >> i & 1)),
                *(kind, instruction, i),
            )
            for i, (code, kind) in enumerate(zip(instruction.sources[:2], kinds, strict=True))
        )
        product = a @ b.transpose(0, 2, 1)
        for register in range(8):
            rows = product[:, [register, register + 8]].reshape(len(product), 32)
            code = instruction.sources[2]
            added = read_vector(
                state, who, code + register if code >= FIRST_VGPR else code, out, 0, False
            )
            total = (rows + signed_sums(added, out, instruction)).astype(wanted)
            if out == "f32":
                write_vector(state, who, instruction.destination + register, out, total)
            else:
                put(state, who, instruction.destination + register, total.view(numpy.uint32))

    return step
