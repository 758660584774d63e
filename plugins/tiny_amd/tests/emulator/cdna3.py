"""CDNA3 (gfx942): what it encodes otherwise than RDNA3, its accumulators and its matrices (MFMA).

AMD, "AMD Instinct MI300 Instruction Set Architecture" (2024), chapters 3, 7 and 12. An instruction
that computes what one of RDNA3 does is called as that one is. Waves have 64 lanes, so that masks of
lanes are pairs of scalar registers. Codes of accumulators follow those of vector registers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy
from emulation.faults import ConvergenceFault, SyntaxFault
from emulation.numbers import bfloat_to_float

from emulator import cdna3_opcodes as opcodes
from emulator.decode import FIRST_VGPR, NULL, Decoder, Instruction, bits, signed
from emulator.opcodes import names as numbered
from emulator.state import M0, Array, State, Step, Who, put, read_vector, vector_word, write_vector

ACCUMULATOR: Final = 256
"""Number of the first accumulator (AccVGPR) among the vector registers."""
SDWA: Final = 249
OFF: Final = 0x7F
"""The scalar address that says that there is none."""
OWN_M0: Final = 124
"""The code of M0, which names nothing on RDNA3."""

RENAMED: Final = {
    "s_ff1_i32_b32": "s_ctz_i32_b32",
    "s_ff1_i32_b64": "s_ctz_i32_b64",
    "s_flbit_i32_b32": "s_clz_i32_u32",
    "s_flbit_i32_b64": "s_clz_i32_u64",
    "s_flbit_i32": "s_cls_i32",
    "s_flbit_i32_i64": "s_cls_i32_i64",
    "s_waitcnt": "s_waitcnt_gfx9",
    "v_ffbh_u32": "v_clz_i32_u32",
    "v_ffbl_b32": "v_ctz_i32_b32",
    "v_ffbh_i32": "v_cls_i32",
    "v_cvt_rpi_i32_f32": "v_cvt_nearest_i32_f32",
    "v_cvt_flr_i32_f32": "v_cvt_floor_i32_f32",
    "v_cvt_pkrtz_f16_f32": "v_cvt_pk_rtz_f16_f32",
    "v_mul_legacy_f32": "v_mul_dx9_zero_f32",
    "v_mad_legacy_u16": "v_mad_u16",
    "v_mad_legacy_i16": "v_mad_i16",
    "v_fma_legacy_f16": "v_fma_f16",
    "v_div_fixup_legacy_f16": "v_div_fixup_f16",
    "v_addc_co_u32": "v_add_co_ci_u32",
    "v_subb_co_u32": "v_sub_co_ci_u32",
    "v_subbrev_co_u32": "v_subrev_co_ci_u32",
    **{
        f"v_{name}_{kind}": f"v_{name}_nc_{kind}"
        for name in ("add", "sub", "subrev")
        for kind in ("u16", "i16", "u32", "i32")
    },
}
"""Operations that RDNA3 has under other names."""
ACCESSES: Final = {
    "ubyte": "u8",
    "sbyte": "i8",
    "ushort": "u16",
    "sshort": "i16",
    "byte": "b8",
    "short": "b16",
    "dword": "b32",
    **{f"dwordx{n}": f"b{32 * n}" for n in (2, 3, 4, 8, 16)},
}
ATOMIC_TYPES: Final = {"smin": "i", "smax": "i", "add": "u", "sub": "u", "umin": "u", "umax": "u"}
OF_SHARED_MEMORY: Final = (
    (r"2st64_", "_2addr_stride64_"),
    (r"(read|write|wrxchg)2_", r"\1_2addr_"),
    (r"_wrxchg", "_storexchg"),
    (r"_cmpst_", "_cmpstore_"),
    (r"_write", "_store"),
    (r"_read", "_load"),
)
VOP3_OF_VOP1: Final = 0x140
VOP3_OF_VOP2: Final = 0x100
FIRST_OWN_VOP3: Final = 450
"""VOP3 before it are those of VOP1, VOP2 and VOPC."""
LEGACY_VOP3: Final = range(490, 496)
"""VOP3 that clear the upper half too; those of RDNA3 have other numbers."""


def renamed(name: str) -> str:
    """The name by which RDNA3 knows an operation of CDNA3."""
    if name in RENAMED:
        return RENAMED[name]
    if name.startswith("ds_"):
        for pattern, other in OF_SHARED_MEMORY:
            name = re.sub(pattern, other, name)
        return name
    access = re.fullmatch(r"(\w+?_(?:load|store))_([a-z]+(?:x\d+)?)(_d16)?(_hi)?", name)
    if access and access[2] in ACCESSES:
        half = [word for word, has in (("d16", access[3]), ("hi", access[4])) if has]
        return "_".join([access[1], *half, ACCESSES[access[2]]])
    atomic = re.fullmatch(r"(\w+_atomic)_([a-z]+)(_x2)?", name)
    if atomic:
        kind = ATOMIC_TYPES.get(atomic[2], "u" if atomic[2] in ("inc", "dec") else "b")
        action = atomic[2].removeprefix("s") if atomic[2] in ("smin", "smax") else atomic[2]
        action = action.removeprefix("u") if action in ("umin", "umax") else action
        return f"{atomic[1]}_{action}_{kind}{64 if atomic[3] else 32}"
    return re.sub(r"_(and|or)n([12])_", lambda m: f"_{m[1]}_not{int(m[2]) - 1}_", name)


def table(text: str, called: Callable[[str], str] = renamed) -> dict[int, str]:
    """Names by number as RDNA3 has them."""
    return {number: called(name) for number, name in numbered(text).items()}


def tables() -> dict[str, dict[int, str]]:
    """Names by encoding and number."""
    plain = ("SOP1", "SOP2", "SOPC", "SOPK", "SOPP", "SMEM", "VOP1", "VOP2", "VOPC", "VOP3P", "DS")
    found = {encoding: table(getattr(opcodes, encoding)) for encoding in (*plain, "MUBUF")}
    found["SOP2"] = {k: v.replace("n2_b", "_not1_b") for k, v in found["SOP2"].items()}
    found |= {
        space.upper(): table(opcodes.GLOBAL.replace("global", space))
        for space in ("global", "flat", "scratch")
    }
    found["VOP3"] = {
        **found["VOPC"],
        **{number + VOP3_OF_VOP2: name for number, name in found["VOP2"].items()},
        **{number + VOP3_OF_VOP1: name for number, name in found["VOP1"].items()},
        **table(opcodes.VOP3),
        **table(opcodes.VOP3SD),
    }
    return found


class Cdna3Decoder(Decoder):
    """The words of one instruction of CDNA3."""

    names: ClassVar[Mapping[str, Mapping[int, str]]] = tables()
    with_carry: ClassVar[frozenset[int]] = frozenset({*range(281, 287), *numbered(opcodes.VOP3SD)})
    lanes: ClassVar[int] = 64

    def decode(self) -> Instruction:
        """The instruction; operands of compare-and-store are in the order of RDNA3."""
        found = reordered(super().decode())
        if found.name == "v_accvgpr_mov_b32":
            (source,) = found.sources
            target = found.destination + ACCUMULATOR
            return replace(found, sources=(source + ACCUMULATOR,), destination=target)
        return found

    def encoding_of(self, word: int) -> str:
        """The scalar encodings of one word are those of RDNA3."""
        if bits(word, 31, 23) == 0x1A7:
            return "VOP3P"
        six = {0x34: "VOP3", 0x36: "DS", 0x37: "FLAT", 0x38: "MUBUF", 0x30: "SMEM"}
        if bits(word, 31, 30) == 3:
            found = six.get(bits(word, 31, 26))
            if found is None:
                raise SyntaxFault(f"{word:#010x} begins no instruction that this emulator knows")
            return found
        return super().encoding_of(word)

    # --- scalar

    def extra(self, sources: tuple[int, ...]) -> dict[str, object]:
        """Sources, with the literal, or the word of DPP or SDWA, that the first one asks for."""
        if sources and sources[0] == SDWA:
            return chosen_parts(self.word(), sources)
        return super().extra(tuple(M0 if code == OWN_M0 else code for code in sources))

    def sop1(self, word: int) -> dict[str, object]:
        """One source."""
        return scalar_destination(super().sop1(word))

    def sop2(self, word: int) -> dict[str, object]:
        """Two sources."""
        return scalar_destination(super().sop2(word))

    def sopk(self, word: int) -> dict[str, object]:
        """A constant of 16 bits; the one that a literal follows has another number."""
        return scalar_destination(
            {
                "number": bits(word, 27, 23),
                "destination": bits(word, 22, 16),
                "immediate": signed(bits(word, 15, 0), 16),
            }
        )

    def smem(self, word: int) -> dict[str, object]:
        """Loads into scalar registers; the offset is a constant, a register or both."""
        second = self.word()
        is_constant, has_register = bits(word, 17, 17), bits(word, 14, 14)
        register = NULL
        if has_register or not is_constant:
            register = bits(second, 31, 25) if has_register else bits(second, 6, 0)
            register = M0 if register == OWN_M0 else register
        return {
            "number": bits(word, 25, 18),
            "destination": bits(word, 12, 6),
            "sources": (bits(word, 5, 0) * 2, register),
            "immediate": signed(bits(second, 20, 0), 21) if is_constant else 0,
        }

    # --- vector

    def vop1(self, word: int) -> dict[str, object]:
        """One source."""
        return {**finish_parts(super().vop1(word)), "clears_upper": True}

    def vop2(self, word: int) -> dict[str, object]:
        """Two sources."""
        return {**finish_parts(super().vop2(word)), "clears_upper": True}

    def vopc(self, word: int) -> dict[str, object]:
        """Compare; SDWA may name another pair of scalar registers."""
        return {**compared_parts(super().vopc(word)), "clears_upper": True}

    def vop3(self, word: int) -> dict[str, object]:
        """Three sources and modifiers; literals do not fit."""
        found, number = super().vop3(word), bits(word, 25, 16)
        return {**found, "clears_upper": number < FIRST_OWN_VOP3 or number in LEGACY_VOP3}

    def vop3p(self, word: int) -> dict[str, object]:
        """Packed, or of matrices and accumulators (VOP3P-MAI)."""
        name = self.names["VOP3P"].get(bits(word, 22, 16), "")
        if not name.startswith(("v_mfma", "v_smfmac", "v_accvgpr")):
            return super().vop3p(word)
        second = self.word()
        codes = (bits(second, 8, 0), bits(second, 17, 9), bits(second, 26, 18))
        of_accumulators = [bits(second, 27, 27), bits(second, 28, 28), bits(word, 15, 15)]
        target = bits(word, 15, 15)
        if name.startswith("v_accvgpr"):
            of_accumulators = [int("read" in name), 0, 0]
            target = int("write" in name)
        return {
            "number": bits(word, 22, 16),
            "destination": bits(word, 7, 0) + ACCUMULATOR * target,
            "sources": tuple(
                code + ACCUMULATOR if flag and code >= FIRST_VGPR else code
                for code, flag in zip(codes, of_accumulators, strict=True)
            ),
            "absolute": bits(word, 10, 8),
            "select": 0 if "accvgpr" in name else bits(word, 14, 11),
            "negated": bits(second, 31, 29),
        }

    # --- memory

    def ds(self, word: int) -> dict[str, object]:
        """Shared memory."""
        second = self.word()
        moved = ACCUMULATOR * bits(word, 25, 25)
        return {
            "number": bits(word, 24, 17),
            "immediate": bits(word, 15, 0),
            "destination": bits(second, 31, 24) + moved,
            "sources": (
                bits(second, 7, 0),
                bits(second, 15, 8) + moved,
                bits(second, 23, 16) + moved,
            ),
            "flags": bits(word, 16, 16),
        }

    def flat(self, word: int) -> dict[str, object]:
        """FLAT, SCRATCH and GLOBAL; the first cache bit of an atomic asks for the old value."""
        second = self.word()
        moved = ACCUMULATOR * bits(second, 23, 23)
        scalar = bits(second, 22, 16)
        return {
            "encoding": ("FLAT", "SCRATCH", "GLOBAL")[bits(word, 15, 14)],
            "number": bits(word, 24, 18),
            "immediate": signed(bits(word, 12, 0), 13),
            "destination": bits(second, 31, 24) + moved,
            "sources": (
                bits(second, 7, 0),
                NULL if scalar == OFF else scalar,
                bits(second, 15, 8) + moved,
            ),
            "flags": bits(word, 16, 16) | bits(word, 13, 13) << 1,
        }

    def mubuf(self, word: int) -> dict[str, object]:
        """Buffers; only what writes caches back and invalidates them is known."""
        self.word()
        return {"number": bits(word, 24, 18)}


def scalar_destination(found: dict[str, object]) -> dict[str, object]:
    """M0 as RDNA3 numbers it."""
    if found["destination"] == OWN_M0:
        found["destination"] = M0
    return found


def chosen_parts(word: int, sources: tuple[int, ...]) -> dict[str, object]:
    """Sources of which a word of SDWA chooses parts."""
    is_scalar = (bits(word, 23, 23), bits(word, 31, 31))
    numbers = (bits(word, 7, 0), *(code - FIRST_VGPR for code in sources[1:]))
    return {
        "sources": tuple(
            number if scalar else FIRST_VGPR + number
            for number, scalar in zip(numbers, is_scalar, strict=False)
        ),
        "parts": word,
        "negated": bits(word, 20, 20) | bits(word, 28, 28) << 1,
        "absolute": bits(word, 21, 21) | bits(word, 29, 29) << 1,
    }


def finish_parts(found: dict[str, object]) -> dict[str, object]:
    """The clamp and the scale that a word of SDWA has."""
    parts = found.get("parts")
    if isinstance(parts, int):
        found |= {"clamp": bool(bits(parts, 13, 13)), "scale": bits(parts, 15, 14)}
    return found


def compared_parts(found: dict[str, object]) -> dict[str, object]:
    """The scalar destination that a word of SDWA may name for a comparison."""
    parts = found.get("parts")
    if isinstance(parts, int):
        found |= {"clamp": False, "scale": 0}
        if parts >> 15 & 1:
            found["destination"] = bits(parts, 14, 8)
    return found


def reordered(found: Instruction) -> Instruction:
    """Operands of compare-and-store in the order of RDNA3."""
    if "_cmpstore_" not in found.name:
        return found
    address, compared, value = found.sources
    return replace(found, sources=(address, value, compared))


def counts_waited_for(immediate: int) -> tuple[int, int]:
    """Counters of s_waitcnt: loads and stores (vmcnt), and accesses of LDS, still under way."""
    return bits(immediate, 3, 0) | bits(immediate, 15, 14) << 4, bits(immediate, 11, 8)


# --- accumulators and matrices


def accumulator_step(instruction: Instruction) -> Step:
    """v_accvgpr_read, _write and _mov: a word between a vector register and an accumulator."""
    code = instruction.sources[0]

    def step(state: State, who: Who) -> None:
        value = read_vector(state, who, code, "b32", instruction.literal, False)
        put(state, who, instruction.destination, value)

    return step


MANTISSAS: Final = {"fp8": 3, "bf8": 2}
"""Bits of the mantissa of formats without infinities, whose negative zero is NaN (FNUZ)."""
WIDTHS: Final = {"f32": 32, "f16": 16, "bf16": 16, "i8": 8, "fp8": 8, "bf8": 8}
"""Bits of an element of A or B."""


class Product:
    """Shape and types of a matrix instruction, by its name."""

    def __init__(self, instruction: Instruction) -> None:
        _, _, self.out, shape, *kinds = instruction.name.split("_")
        blocks = kinds.pop(0) if re.fullmatch(r"\d+b", kinds[0]) else "1b"
        self.kinds = kinds if len(kinds) == 2 else kinds * 2
        self.side, _, self.steps = (int(n) for n in shape.split("x"))
        modifiers = instruction.absolute | instruction.select | instruction.negated
        if blocks != "1b" or self.kinds[0] not in WIDTHS or modifiers:
            raise SyntaxFault(f"{instruction} is not supported")
        self.lane_steps = self.steps * self.side // 64
        self.words = max(self.lane_steps * WIDTHS[self.kinds[0]] // 32, 1)
        self.sums = self.side * self.side // 64


def unsigned_zeros_to_float(patterns: Array, mantissa_bits: int) -> Array:
    """Bytes of a FNUZ format as numbers; the bias is one more than that of IEEE's formats."""
    whole = patterns.astype(numpy.int64)
    bias = 1 << (6 - mantissa_bits)
    exponent = (whole & 0x7F) >> mantissa_bits
    hidden = numpy.where(exponent > 0, 1 << mantissa_bits, 0)
    mantissa = (whole & ((1 << mantissa_bits) - 1)) + hidden
    value = numpy.ldexp(mantissa * 1.0, numpy.maximum(exponent, 1) - bias - mantissa_bits)
    value = numpy.where(whole & 0x80 != 0, -value, value)
    return numpy.where(whole == 0x80, numpy.nan, value)


def values_of(words: Array, kind: str) -> Array:
    """(waves, 64, words) as numbers: those of a lane along K."""
    if kind == "f32":
        return words.view(numpy.float32).astype(numpy.float64)
    if kind == "f16":
        return words.view(numpy.float16).astype(numpy.float64)
    if kind == "bf16":
        return bfloat_to_float(words.view(numpy.uint16)).astype(numpy.float64)
    if kind == "i8":
        return words.view(numpy.int8).astype(numpy.int64)
    return unsigned_zeros_to_float(words.view(numpy.uint8), MANTISSAS[kind])


def operand(state: State, who: Who, code: int, kind: str, product: Product) -> Array:
    """A or B as (waves, side, K): lane l has row or column l % side, and the next steps of K."""
    first = code - FIRST_VGPR
    words = [vector_word(state, who, first + i) for i in range(product.words)]
    values = values_of(numpy.ascontiguousarray(numpy.stack(words, axis=2)), kind)
    split = values.reshape(len(values), 64 // product.side, product.side, product.lane_steps)
    return split.transpose(0, 2, 1, 3).reshape(len(values), product.side, product.steps)


def places(product: Product) -> tuple[Array, Array]:
    """Row and column of each sum, by register and lane."""
    register, lane = numpy.arange(product.sums)[:, None], numpy.arange(64)[None]
    group, within = lane // product.side, lane % product.side
    rows = register // 4 * (256 // product.side) + 4 * group + register % 4
    return rows, within + 0 * rows


def mfma_step(instruction: Instruction) -> Step:
    """v_mfma_*: D = A @ B + C by a wave."""
    product = Product(instruction)
    rows, columns = places(product)
    wanted: Any = numpy.float32 if product.out == "f32" else numpy.int32

    def step(state: State, who: Who) -> None:
        if not (state.active if who is None else state.active[who]).all():
            raise ConvergenceFault(f"{instruction.name} needs every lane")
        a, b = (
            operand(state, who, code, kind, product)
            for code, kind in zip(instruction.sources[:2], product.kinds, strict=True)
        )
        found = (a @ b.transpose(0, 2, 1))[:, rows, columns]
        code = instruction.sources[2]
        added = [
            read_vector(
                *(state, who, code + i if code >= FIRST_VGPR else code, product.out),
                *(instruction.literal, False),
            )
            for i in range(product.sums)
        ]
        for index, term in enumerate(added):
            total = (found[:, index] + term).astype(wanted)
            write_vector(state, who, instruction.destination + index, product.out, total)

    return step


def matrix_registers(instruction: Instruction) -> list[int]:
    """Codes of all registers that an instruction of matrices reads or writes."""
    product = Product(instruction)
    a, b, c = instruction.sources
    spans = [(a, product.words), (b, product.words), (c, product.sums)]
    spans.append((FIRST_VGPR + instruction.destination, product.sums))
    return [code + i for code, count in spans if code >= FIRST_VGPR for i in range(count)]
