"""Scalar instructions: SOP1, SOP2, SOPC and SOPK (ISA, sections 16.1 to 16.4).

Each row computes from unsigned arrays (waves,) the result and what becomes of SCC; None leaves SCC.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy
from emulation.faults import SyntaxFault
from emulation.numbers import fma_narrow

from emulator.decode import Instruction
from emulator.state import (
    EXEC,
    FLOAT_CONSTANTS,
    SCC,
    Array,
    State,
    Step,
    Who,
    scalar_pair,
    scalar_word,
    write_scalar,
    write_scalar_pair,
)

Result = tuple[Any, Any]
U32, U64, I32, I64 = numpy.uint32, numpy.uint64, numpy.int32, numpy.int64
FLAT_SCRATCH_LOW, FLAT_SCRATCH_HIGH = 20, 21
"""Numbers of the hardware registers with the address of a wave's scratch."""


def nonzero(value: Array) -> Result:
    """A result whose SCC says that it is not zero."""
    return value, value != 0


def add(a: Array, b: Array, carry: Array | int = 0) -> Result:
    """With the carry in SCC."""
    total = a.astype(U64) + b + numpy.asarray(carry, U64)
    return total.astype(U32), total >> U64(32)


def subtract(a: Array, b: Array, borrow: Array | int = 0) -> Result:
    """With the borrow in SCC."""
    total = a.astype(I64) - b.astype(I64) - numpy.asarray(borrow, I64)
    return total.astype(U32), total < 0


def overflow(operation: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Result]:
    """Signed, with overflow in SCC."""

    def compute(a: Array, b: Array) -> Result:
        total = operation(a.view(I32).astype(I64), b.view(I32).astype(I64))
        return total.astype(U32), (total < -(2**31)) | (total >= 2**31)

    return compute


def shift_add(count: int) -> Callable[[Array, Array], Result]:
    """(a << n) + b with the carry in SCC."""

    def compute(a: Array, b: Array) -> Result:
        total = (a.astype(U64) << U64(count)) + b
        return total.astype(U32), total >> U64(32) != 0

    return compute


def extract(a: Array, control: Array, is_signed: bool) -> Result:
    """A field: its offset in bits 4:0, its width in bits 22:16."""
    offset, width = control & 31, numpy.minimum(control >> 16 & 127, 32).astype(U64)
    field = (a >> offset).astype(U64) & ((U64(1) << width) - U64(1))
    if is_signed:
        sign = numpy.where(width > 0, field >> numpy.maximum(width, 1) - U64(1) & U64(1), U64(0))
        field = numpy.where(sign != 0, field | ~((U64(1) << width) - U64(1)), field)
    return nonzero(field.astype(U32))


def extract_wide(a: Array, control: Array, is_signed: bool) -> Array:
    """A field of 64 bits: its offset in bits 5:0, its width in bits 22:16."""
    offset, width = control & 63, numpy.minimum(control >> 16 & 127, 64)
    top = 64 - numpy.maximum(width, 1)  # moved to the upper end and back
    if is_signed:
        moved = (a.view(I64) >> offset.astype(I64)) << top.astype(I64)
        field = (moved >> top.astype(I64)).view(U64)
    else:
        field = (a >> offset.astype(U64)) << top.astype(U64) >> top.astype(U64)
    return numpy.where(width > 0, field, U64(0))


def leading_zeros(a: Array) -> Array:
    """Zeros above the first one of 32 bits; all ones for none."""
    _, exponent = numpy.frexp(a.astype(numpy.float64))
    return numpy.where(a == 0, U32(0xFFFFFFFF), (32 - exponent).astype(U32))


def trailing_zeros(a: Array) -> Array:
    """Zeros below the first one; all ones for none."""
    lowest = a & (~a + U32(1))
    return numpy.where(a == 0, U32(0xFFFFFFFF), numpy.bitwise_count(lowest - U32(1)).astype(U32))


def reverse(a: Array) -> Array:
    """Bits in opposite order."""
    data = numpy.ascontiguousarray(a).view(numpy.uint8).reshape(*a.shape, 4)
    flags = numpy.unpackbits(data, axis=-1, bitorder="little")[..., ::-1]
    packed = numpy.packbits(flags, axis=-1, bitorder="little")
    result: Array = numpy.ascontiguousarray(packed).view(U32)[..., 0]
    return result


def pick(
    choose_first: Callable[[Array, Array], Array], kind: Any
) -> Callable[[Array, Array], Result]:
    """min and max; SCC says that the first was chosen."""

    def compute(a: Array, b: Array) -> Result:
        first = choose_first(a.view(kind), b.view(kind))
        return numpy.where(first, a, b), first

    return compute


def high_product(a: Array, b: Array, kind: Any) -> Array:
    """The upper half of a product."""
    narrow = I32 if kind is I64 else U32
    product = a.view(narrow).astype(kind) * b.view(narrow).astype(kind)
    upper: Array = (product >> kind(32)).astype(U32)
    return upper


TWO: Final[dict[str, Callable[..., Result]]] = {
    "s_add_u32": add,
    "s_sub_u32": subtract,
    "s_add_i32": overflow(numpy.add),
    "s_sub_i32": overflow(numpy.subtract),
    "s_absdiff_i32": lambda a, b: nonzero(
        numpy.abs(a.view(I32).astype(I64) - b.view(I32).astype(I64)).astype(U32)
    ),
    "s_lshl_b32": lambda a, b: nonzero(a << (b & 31)),
    "s_lshr_b32": lambda a, b: nonzero(a >> (b & 31)),
    "s_ashr_i32": lambda a, b: nonzero((a.view(I32) >> (b & 31).view(I32)).view(U32)),
    "s_lshl1_add_u32": shift_add(1),
    "s_lshl2_add_u32": shift_add(2),
    "s_lshl3_add_u32": shift_add(3),
    "s_lshl4_add_u32": shift_add(4),
    "s_min_i32": pick(numpy.less, I32),
    "s_min_u32": pick(numpy.less, U32),
    "s_max_i32": pick(numpy.greater, I32),
    "s_max_u32": pick(numpy.greater, U32),
    "s_and_b32": lambda a, b: nonzero(a & b),
    "s_or_b32": lambda a, b: nonzero(a | b),
    "s_xor_b32": lambda a, b: nonzero(a ^ b),
    "s_nand_b32": lambda a, b: nonzero(~(a & b)),
    "s_nor_b32": lambda a, b: nonzero(~(a | b)),
    "s_xnor_b32": lambda a, b: nonzero(~(a ^ b)),
    "s_and_not1_b32": lambda a, b: nonzero(a & ~b),
    "s_or_not1_b32": lambda a, b: nonzero(a | ~b),
    "s_bfe_u32": lambda a, b: extract(a, b, False),
    "s_bfe_i32": lambda a, b: extract(a, b, True),
    "s_bfm_b32": lambda a, b: (((U32(1) << (a & 31)) - U32(1)) << (b & 31), None),
    "s_mul_i32": lambda a, b: (a * b, None),
    "s_mul_hi_u32": lambda a, b: (high_product(a, b, U64), None),
    "s_mul_hi_i32": lambda a, b: (high_product(a, b, I64), None),
    "s_pack_ll_b32_b16": lambda a, b: ((a & 0xFFFF) | b << U32(16), None),
    "s_pack_lh_b32_b16": lambda a, b: ((a & 0xFFFF) | b & 0xFFFF0000, None),
    "s_pack_hh_b32_b16": lambda a, b: (a >> U32(16) | b & 0xFFFF0000, None),
    "s_pack_hl_b32_b16": lambda a, b: (a >> U32(16) | b << U32(16), None),
}
"""SOP2 of 32 bits."""

TWO_WIDE: Final[dict[str, Callable[..., Result]]] = {
    "s_and_b64": lambda a, b: nonzero(a & b),
    "s_or_b64": lambda a, b: nonzero(a | b),
    "s_xor_b64": lambda a, b: nonzero(a ^ b),
    "s_nand_b64": lambda a, b: nonzero(~(a & b)),
    "s_nor_b64": lambda a, b: nonzero(~(a | b)),
    "s_xnor_b64": lambda a, b: nonzero(~(a ^ b)),
    "s_and_not1_b64": lambda a, b: nonzero(a & ~b),
    "s_or_not1_b64": lambda a, b: nonzero(a | ~b),
    "s_add_nc_u64": lambda a, b: (a + b, None),
    "s_sub_nc_u64": lambda a, b: (a - b, None),
    "s_mul_u64": lambda a, b: (a * b, None),
}
"""SOP2 of 64 bits."""

SHIFTS_WIDE: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "s_lshl_b64": lambda a, b: a << (b & 63).astype(U64),
    "s_lshr_b64": lambda a, b: a >> (b & 63).astype(U64),
    "s_ashr_i64": lambda a, b: (a.view(I64) >> (b & 63).astype(I64)).view(U64),
    "s_bfe_u64": lambda a, b: extract_wide(a, b, False),
    "s_bfe_i64": lambda a, b: extract_wide(a, b, True),
}
"""64 bits by a word: an amount, or a field."""

ONE: Final[dict[str, Callable[[Array], Result]]] = {
    "s_mov_b32": lambda a: (a, None),
    "s_brev_b32": lambda a: (reverse(a), None),
    "s_ctz_i32_b32": lambda a: (trailing_zeros(a), None),
    "s_clz_i32_u32": lambda a: (leading_zeros(a), None),
    "s_cls_i32": lambda a: (sign_bits(a), None),
    "s_sext_i32_i8": lambda a: (a.astype(numpy.int8).astype(I32).view(U32), None),
    "s_sext_i32_i16": lambda a: (a.astype(numpy.int16).astype(I32).view(U32), None),
    "s_abs_i32": lambda a: nonzero(numpy.abs(a.view(I32)).view(U32)),
    "s_bcnt0_i32_b32": lambda a: nonzero(numpy.bitwise_count(~a).astype(U32)),
    "s_bcnt1_i32_b32": lambda a: nonzero(numpy.bitwise_count(a).astype(U32)),
    "s_not_b32": lambda a: nonzero(~a),
}
"""SOP1 of 32 bits."""

MASKS: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "and": lambda s, e: s & e,
    "or": lambda s, e: s | e,
    "xor": lambda s, e: s ^ e,
    "nand": lambda s, e: ~(s & e),
    "nor": lambda s, e: ~(s | e),
    "xnor": lambda s, e: ~(s ^ e),
    "and_not0": lambda s, e: ~s & e,
    "or_not0": lambda s, e: ~s | e,
    "and_not1": lambda s, e: s & ~e,
    "or_not1": lambda s, e: s | ~e,
}
"""New EXEC of s_*_saveexec and s_*_wrexec."""

COMPARISONS: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "eq": numpy.equal,
    "lg": numpy.not_equal,
    "gt": numpy.greater,
    "ge": numpy.greater_equal,
    "lt": numpy.less,
    "le": numpy.less_equal,
}


def sign_bits(a: Array) -> Array:
    """Number of bits at the top that equal the sign; all ones where all bits do."""
    value = numpy.where(a.view(I32) < 0, ~a, a)
    return numpy.where(value == 0, U32(0xFFFFFFFF), leading_zeros(value))


# --- floats (RDNA4)

FLOATS: Final = {"f16": numpy.float16, "f32": numpy.float32}
OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    "add": numpy.add,
    "sub": numpy.subtract,
    "mul": numpy.multiply,
    "min": numpy.fmin,
    "max": numpy.fmax,
    "fmac": fma_narrow,
    "fmaak": fma_narrow,
    "fmamk": fma_narrow,
    "ceil": numpy.ceil,
    "floor": numpy.floor,
    "trunc": numpy.trunc,
    "rndne": numpy.rint,
}
"""Float operations of SOP1 and SOP2; fmac adds to its destination."""
ORDERINGS: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "lt": numpy.less,
    "eq": numpy.equal,
    "le": numpy.less_equal,
    "gt": numpy.greater,
    "lg": lambda a, b: (a < b) | (a > b),
    "ge": numpy.greater_equal,
    "o": lambda a, b: (a == a) & (b == b),
}
NEGATED: Final = {
    **{f"n{relation}": relation for relation in ("ge", "lg", "gt", "le", "eq", "lt")},
    "u": "o",
}
"""Comparisons that hold where others do not."""


def as_float(word: Array, kind: str) -> Array:
    """A word, or its lower half, as a float."""
    narrow = word.astype(numpy.uint16) if kind == "f16" else numpy.ascontiguousarray(word)
    return narrow.view(FLOATS[kind])


def read_float(state: State, who: Who, instruction: Instruction, code: int, kind: str) -> Array:
    """A scalar operand as a float; constants have the width of the operation."""
    if kind == "f16" and code in FLOAT_CONSTANTS:
        return numpy.full(state.count(who), FLOAT_CONSTANTS[code], numpy.float16)
    return as_float(scalar_word(state, who, code, instruction.literal), kind)


def float_word(value: Any, kind: str) -> Array:
    """A float as a word."""
    bits = numpy.asarray(value).astype(FLOATS[kind])
    return bits.view(numpy.uint16 if kind == "f16" else U32).astype(U32)


def float_step(instruction: Instruction) -> Step | None:
    """SOP1 and SOP2 that compute floats, None for others."""
    _, action, *kinds = instruction.name.split("_")
    if action not in OPERATIONS or kinds[-1] not in FLOATS:
        return None
    kind, compute = kinds[-1], OPERATIONS[action]

    def step(state: State, who: Who) -> None:
        values = [read_float(state, who, instruction, code, kind) for code in instruction.sources]
        if action == "fmac":
            values.append(as_float(scalar_word(state, who, instruction.destination, 0), kind))
        write_scalar(state, who, instruction.destination, float_word(compute(*values), kind))

    return step


def whole_number(kind: Any) -> Callable[[Array], Result]:
    """A float32 toward zero, ending at the bounds; NaN gives 0."""
    bounds = numpy.iinfo(kind)

    def convert(a: Array) -> Result:
        whole = numpy.trunc(a.view(numpy.float32).astype(numpy.float64))
        whole = numpy.clip(numpy.where(numpy.isnan(whole), 0.0, whole), bounds.min, bounds.max)
        return whole.astype(I64).astype(kind).view(U32), None

    return convert


CONVERSIONS: Final[dict[str, Callable[[Array], Result]]] = {
    "s_cvt_f32_i32": lambda a: (float_word(a.view(I32), "f32"), None),
    "s_cvt_f32_u32": lambda a: (float_word(a, "f32"), None),
    "s_cvt_i32_f32": whole_number(I32),
    "s_cvt_u32_f32": whole_number(U32),
    "s_cvt_f16_f32": lambda a: (float_word(as_float(a, "f32"), "f16"), None),
    "s_cvt_f32_f16": lambda a: (float_word(as_float(a, "f16"), "f32"), None),
    "s_cvt_hi_f32_f16": lambda a: (float_word(as_float(a >> U32(16), "f16"), "f32"), None),
}


def set_scc(state: State, who: Who, value: Any) -> None:
    """SCC, unless it stays."""
    if value is not None:
        write_scalar(state, who, SCC, numpy.asarray(value != 0).astype(U32))


def reads_of(instruction: Instruction) -> list[int]:
    """Scalar registers that an instruction may read."""
    wide = "64" in instruction.name
    return [c + i for c in instruction.sources if c < 128 for i in range(1 + wide)]


def sop1(instruction: Instruction) -> Step:
    """SOP1."""
    name, (code,) = instruction.name, instruction.sources
    target, literal = instruction.destination, instruction.literal
    if (floats := float_step(instruction)) is not None:
        return floats
    if name in ONE or name in CONVERSIONS:
        compute = ONE.get(name) or CONVERSIONS[name]

        def step(state: State, who: Who) -> None:
            value, scc = compute(scalar_word(state, who, code, literal))
            write_scalar(state, who, target, value)
            set_scc(state, who, scc)

        return step
    if "saveexec" in name or "wrexec" in name:
        return mask_step(instruction)
    return wide_one(instruction)


def mask_step(instruction: Instruction) -> Step:
    """s_and_saveexec and its like, of 32 or 64 bits."""
    name, (code,) = instruction.name, instruction.sources
    change = MASKS[name[2 : name.rindex("_", 0, name.rindex("_"))]]
    saves, is_wide = "saveexec" in name, name.endswith("b64")
    read = scalar_pair if is_wide else scalar_word
    write = write_scalar_pair if is_wide else write_scalar

    def step(state: State, who: Who) -> None:
        source = read(state, who, code, instruction.literal)
        old = read(state, who, EXEC, 0).copy()
        new = change(source, old)
        write(state, who, EXEC, new)
        write(state, who, instruction.destination, old if saves else new)
        set_scc(state, who, new)

    return step


def wide_one(instruction: Instruction) -> Step:
    """SOP1 that move 64 bits, or conditionally."""
    name, (code,) = instruction.name, instruction.sources
    target, literal = instruction.destination, instruction.literal

    def move(state: State, who: Who) -> None:
        write_scalar_pair(state, who, target, scalar_pair(state, who, code, literal))

    def invert(state: State, who: Who) -> None:
        value = ~scalar_pair(state, who, code, literal)
        write_scalar_pair(state, who, target, value)
        set_scc(state, who, value)

    def move_if(state: State, who: Who) -> None:
        old = scalar_word(state, who, target, 0)
        holds = scalar_word(state, who, SCC, 0) != 0
        value = numpy.where(holds, scalar_word(state, who, code, literal), old)
        write_scalar(state, who, target, value)

    def set_bit(state: State, who: Who) -> None:
        bit = U32(1) << (scalar_word(state, who, code, literal) & 31)
        old = scalar_word(state, who, target, 0)
        write_scalar(state, who, target, old | bit if "set1" in name else old & ~bit)

    def count_zeros(state: State, who: Who) -> None:
        value = scalar_pair(state, who, code, literal)
        low, high = value.astype(U32), (value >> U64(32)).astype(U32)
        if name == "s_ctz_i32_b64":
            upper = trailing_zeros(high)
            upper = numpy.where(upper == 0xFFFFFFFF, upper, upper + U32(32))
            found = numpy.where(low != 0, trailing_zeros(low), upper)
        else:
            lower = leading_zeros(low)
            lower = numpy.where(lower == 0xFFFFFFFF, lower, lower + U32(32))
            found = numpy.where(high != 0, leading_zeros(high), lower)
        write_scalar(state, who, target, found)

    def count_ones(state: State, who: Who) -> None:
        value = scalar_pair(state, who, code, literal)
        count = numpy.bitwise_count(~value if name == "s_bcnt0_i32_b64" else value).astype(U32)
        write_scalar(state, who, target, count)
        set_scc(state, who, count)

    def turn_around(state: State, who: Who) -> None:
        value = scalar_pair(state, who, code, literal)
        low, high = reverse(value.astype(U32)), reverse((value >> U64(32)).astype(U32))
        write_scalar_pair(state, who, target, low.astype(U64) << U64(32) | high.astype(U64))

    def move_pair_if(state: State, who: Who) -> None:
        holds = scalar_word(state, who, SCC, 0) != 0
        old = scalar_pair(state, who, target, 0)
        value = numpy.where(holds, scalar_pair(state, who, code, literal), old)
        write_scalar_pair(state, who, target, value)

    table: dict[str, Step] = {
        "s_bcnt0_i32_b64": count_ones,
        "s_bcnt1_i32_b64": count_ones,
        "s_brev_b64": turn_around,
        "s_cmov_b64": move_pair_if,
        "s_mov_b64": move,
        "s_not_b64": invert,
        "s_cmov_b32": move_if,
        "s_bitset0_b32": set_bit,
        "s_bitset1_b32": set_bit,
        "s_ctz_i32_b64": count_zeros,
        "s_clz_i32_u64": count_zeros,
    }
    if name not in table:
        raise SyntaxFault(f"{instruction} is not supported")
    return table[name]


def sop2(instruction: Instruction) -> Step:
    """SOP2."""
    if (floats := float_step(instruction)) is not None:
        return floats
    name, (a, b) = instruction.name, instruction.sources
    target, literal = instruction.destination, instruction.literal
    if name in TWO:
        compute = TWO[name]

        def narrow(state: State, who: Who) -> None:
            first, second = (scalar_word(state, who, c, literal) for c in (a, b))
            value, scc = compute(first, second)
            write_scalar(state, who, target, value)
            set_scc(state, who, scc)

        return narrow
    if name in TWO_WIDE:
        compute_wide = TWO_WIDE[name]

        def wide(state: State, who: Who) -> None:
            first, second = (scalar_pair(state, who, c, literal) for c in (a, b))
            value, scc = compute_wide(first, second)
            write_scalar_pair(state, who, target, value)
            set_scc(state, who, scc)

        return wide
    if name in SHIFTS_WIDE:
        shift = SHIFTS_WIDE[name]

        def shifted(state: State, who: Who) -> None:
            value = shift(scalar_pair(state, who, a, literal), scalar_word(state, who, b, literal))
            write_scalar_pair(state, who, target, value)
            set_scc(state, who, value)

        return shifted
    return with_scc(instruction)


def with_scc(instruction: Instruction) -> Step:
    """SOP2 that read SCC."""
    name, (a, b) = instruction.name, instruction.sources
    target, literal = instruction.destination, instruction.literal
    if name in ("s_addc_u32", "s_subb_u32"):
        compute = add if name == "s_addc_u32" else subtract

        def carried(state: State, who: Who) -> None:
            scc = scalar_word(state, who, SCC, 0)
            first, second = (scalar_word(state, who, c, literal) for c in (a, b))
            value, carry = compute(first, second, scc)
            write_scalar(state, who, target, value)
            set_scc(state, who, carry)

        return carried
    if name not in ("s_cselect_b32", "s_cselect_b64"):
        raise SyntaxFault(f"{instruction} is not supported")
    read = scalar_word if name == "s_cselect_b32" else scalar_pair
    write = write_scalar if name == "s_cselect_b32" else write_scalar_pair

    def select(state: State, who: Who) -> None:
        holds = scalar_word(state, who, SCC, 0) != 0
        first, second = (read(state, who, c, literal) for c in (a, b))
        write(state, who, target, numpy.where(holds, first, second))

    return select


def sopc(instruction: Instruction) -> Step:
    """SOPC: a comparison to SCC."""
    name, (a, b) = instruction.name, instruction.sources
    literal = instruction.literal
    _, action, *rest = name.split("_")
    if action.startswith("bitcmp"):
        if not name.endswith("b32"):
            raise SyntaxFault(f"{instruction} is not supported")
        wanted = int(action[-1])

        def test(state: State, who: Who) -> None:
            first, second = (scalar_word(state, who, c, literal) for c in (a, b))
            set_scc(state, who, (first >> (second & 31) & 1) == wanted)

        return test
    if name.endswith(("_f16", "_f32")):
        return compare_floats(instruction)
    compare, kind = COMPARISONS[rest[0]], rest[1]
    read = scalar_pair if kind.endswith("64") else scalar_word
    wanted_kind = {"i32": I32, "u32": U32, "u64": U64}[kind]

    def step(state: State, who: Who) -> None:
        first, second = (read(state, who, c, literal).view(wanted_kind) for c in (a, b))
        set_scc(state, who, compare(first, second))

    return step


def compare_floats(instruction: Instruction) -> Step:
    """SOPC of floats."""
    _, _, relation, kind = instruction.name.split("_")
    compare = ORDERINGS[NEGATED.get(relation, relation)]
    negates = relation in NEGATED

    def step(state: State, who: Who) -> None:
        a, b = (read_float(state, who, instruction, code, kind) for code in instruction.sources)
        set_scc(state, who, compare(a, b) != negates)

    return step


def place_scratch(instruction: Instruction, state: State, who: Who) -> None:
    """s_setreg_b32: of what it sets only the address of scratch matters here, on RDNA2."""
    half = {FLAT_SCRATCH_LOW: 0, FLAT_SCRATCH_HIGH: 1}.get(instruction.immediate & 63)
    if half is not None and state.scratch is not None:
        rows = slice(None) if who is None else who
        state.scratch[rows, half] = scalar_word(state, who, instruction.destination, 0)


def sopk(instruction: Instruction) -> Step:
    """SOPK: a constant of 16 bits."""
    name, target, value = instruction.name, instruction.destination, instruction.immediate
    constant = numpy.int64(value)

    def old(state: State, who: Who) -> Array:
        return scalar_word(state, who, target, 0)

    def move(state: State, who: Who) -> None:
        write_scalar(state, who, target, numpy.full(state.count(who), value % 2**32, U32))

    def move_if(state: State, who: Who) -> None:
        holds = scalar_word(state, who, SCC, 0) != 0
        write_scalar(state, who, target, numpy.where(holds, U32(value % 2**32), old(state, who)))

    def increase(state: State, who: Who) -> None:
        total = old(state, who).view(I32).astype(I64) + constant
        write_scalar(state, who, target, total.astype(U32))
        set_scc(state, who, (total < -(2**31)) | (total >= 2**31))

    def multiply(state: State, who: Who) -> None:
        product = old(state, who).view(I32).astype(I64) * constant
        write_scalar(state, who, target, product.astype(U32))

    def compare(state: State, who: Who) -> None:
        _, _, relation, kind = name.split("_")
        number = old(state, who)
        if kind == "i32":
            set_scc(state, who, COMPARISONS[relation](number.view(I32), numpy.array(value, I32)))
        else:
            set_scc(state, who, COMPARISONS[relation](number, numpy.array(value & 0xFFFF, U32)))

    table: dict[str, Step] = {
        "s_movk_i32": move,
        "s_cmovk_i32": move_if,
        "s_addk_i32": increase,
        "s_mulk_i32": multiply,
        "s_setreg_b32": lambda state, who: place_scratch(instruction, state, who),
        "s_setreg_imm32_b32": lambda state, who: None,
    }
    if name.startswith("s_cmpk"):
        return compare
    if name not in table:
        raise SyntaxFault(f"{instruction} is not supported")
    return table[name]
