"""Arithmetic instructions, a row each: what they compute from arrays of their operands' type.

Meaning and corner cases: PTX ISA 9.0, sections 9.7.1 to 9.7.8. Approximations are computed exactly
and rounded; a card is off by up to 2 ulp there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy
from emulation.faults import SyntaxFault
from emulation.memory import UNSIGNED
from emulation.numbers import (
    bfloat_to_float,
    float_to_bfloat,
    flush,
    fma_double,
    fma_narrow,
)

from executor.registers import Array, State, Step, Who, reader, writer
from executor.syntax import Instruction, Pair, Sink, Vector

Operation = Callable[..., Any]

FLOATS: Final = frozenset({"f16", "f32", "f64", "bf16", "f16x2", "bf16x2"})


# --- floats: every format is computed in one that NumPy has, and rounded once


def as_numbers(kind: str, values: Array, is_flushed: bool) -> Array:
    """Bit patterns or floats of a type as floats to compute with."""
    if kind == "bf16":
        return bfloat_to_float(values)
    return flush(values) if is_flushed and kind == "f32" else values


def as_type(kind: str, values: Array, instruction: Instruction) -> Array:
    """Results as the type's floats or bit patterns."""
    mode = next((m for m in instruction.modifiers if m in ("rn", "rz", "rm", "rp")), "rn")
    if kind == "bf16":
        return float_to_bfloat(values, mode)
    if kind == "f32":
        values = rounded_float(values, mode)
        values = flush(values) if "ftz" in instruction.modifiers else values
    else:
        values = values.astype({"f16": numpy.float16, "f64": numpy.float64}[kind])
    if "sat" in instruction.modifiers:
        values = numpy.where(numpy.isnan(values), 0, numpy.clip(values, 0, 1)).astype(values.dtype)
    if "relu" in instruction.modifiers:
        values = numpy.where(values > 0, values, numpy.where(numpy.isnan(values), values, 0))
        values = values.astype({"f16": numpy.float16, "f32": numpy.float32}.get(kind, values.dtype))
    return values


def rounded_float(values: Array, mode: str) -> Array:
    """Doubles as float32 in a rounding mode."""
    nearest = values.astype(numpy.float32)
    if mode == "rn" or values.dtype == numpy.float32:
        return nearest
    wide = nearest.astype(numpy.float64)
    too_high = wide > values
    too_low = wide < values
    down = numpy.nextafter(nearest, numpy.float32(-numpy.inf))
    up = numpy.nextafter(nearest, numpy.float32(numpy.inf))
    if mode == "rz":
        nearest = numpy.where(too_high & (values > 0), down, nearest)
        return numpy.where(too_low & (values < 0), up, nearest)
    if mode == "rm":
        return numpy.where(too_high, down, nearest)
    return numpy.where(too_low, up, nearest)


def exactly(operation: Operation) -> Operation:
    """An operation on floats computed in double, which rounds right for every narrower format."""
    return lambda *values: operation(*(numpy.asarray(v, numpy.float64) for v in values))


def smaller(a: Array, b: Array) -> Array:
    """The minimum; of a number and NaN the number, of zeros the negative one."""
    low = numpy.fmin(a, b)
    return numpy.where((a == b) & numpy.signbit(a), a, low)


def larger(a: Array, b: Array) -> Array:
    """The maximum; of a number and NaN the number, of zeros the positive one."""
    high = numpy.fmax(a, b)
    return numpy.where((a == b) & ~numpy.signbit(a), a, high)


def fused(kind: str) -> Operation:
    """fma of a type."""
    return fma_double if kind == "f64" else fma_narrow


FLOAT_OPERATIONS: Final[dict[str, Operation]] = {
    "add": numpy.add,
    "sub": numpy.subtract,
    "mul": numpy.multiply,
    "div": numpy.divide,
    "min": smaller,
    "max": larger,
    "neg": numpy.negative,
    "abs": numpy.abs,
    "sqrt": numpy.sqrt,
    "rcp": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / numpy.sqrt(x),
    "ex2": numpy.exp2,
    "lg2": numpy.log2,
    "sin": numpy.sin,
    "cos": numpy.cos,
    "tanh": numpy.tanh,
    "copysign": lambda a, b: numpy.copysign(b, a),
}
"""By opcode. min and max say which NaN they keep by their modifier."""


def float_step(instruction: Instruction, kind: str) -> Step:
    """add, mul, fma, ... of one float type."""
    modifiers = instruction.modifiers
    if kind.endswith("x2"):
        return halves_step(instruction, kind[:-2])
    destination, *sources = instruction.operands
    reads = [reader(source, kind, instruction.line) for source in sources]
    write = writer(destination, kind, instruction.line)
    is_flushed = "ftz" in modifiers
    compute = float_function(instruction, kind)

    def step(state: State, who: Who) -> None:
        values = [as_numbers(kind, read(state, who), is_flushed) for read in reads]
        write(state, who, as_type(kind, compute(*values), instruction))

    return step


def float_function(instruction: Instruction, kind: str) -> Operation:
    """Function of floats that an instruction computes."""
    opcode = instruction.opcode
    if opcode in ("fma", "mad"):
        return fused(kind)
    operation = FLOAT_OPERATIONS[opcode]
    if opcode in ("min", "max") and "NaN" in instruction.modifiers:
        return keep_nan(operation)
    if opcode in ("neg", "abs", "min", "max", "copysign") or kind == "f64":
        return operation
    directed = {"rz", "rm", "rp"} & set(instruction.modifiers)
    if opcode in ("add", "sub", "mul", "div", "sqrt") and not directed:
        return operation  # float32 has 2p + 2 bits for the narrower formats: rounded once in effect
    return exactly(operation)


def keep_nan(operation: Operation) -> Operation:
    """NaN where either operand is NaN (.NaN)."""
    return lambda a, b: numpy.where(numpy.isnan(a) | numpy.isnan(b), numpy.nan, operation(a, b))


def halves_step(instruction: Instruction, kind: str) -> Step:
    """The same on both halves of a register: f16x2, bf16x2."""
    destination, *sources = instruction.operands
    reads = [reader(source, "b32", instruction.line) for source in sources]
    write = writer(destination, "b32", instruction.line)
    compute = float_function(instruction, kind)
    half = numpy.float16 if kind == "f16" else numpy.uint16

    def step(state: State, who: Who) -> None:
        values = [as_numbers(kind, read(state, who).view(half), False) for read in reads]
        result = as_type(kind, compute(*values), instruction)
        write(state, who, numpy.ascontiguousarray(result).view(numpy.uint32))

    return step


# --- integers


def wide(kind: str) -> str:
    """The type of twice the width."""
    return f"{kind[0]}{2 * int(kind[1:])}"


def high_half(a: Array, b: Array) -> Array:
    """The upper half of a product."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        double = numpy.dtype(f"{'i' if a.dtype.kind == 'i' else 'u'}{bits // 4}").type
        upper: Array = ((a.astype(double) * b.astype(double)) >> double(bits)).astype(a.dtype)
        return upper
    low, high = numpy.uint64(0xFFFFFFFF), numpy.uint64(32)
    x, y = a.view(numpy.uint64), b.view(numpy.uint64)
    x0, x1, y0, y1 = x & low, x >> high, y & low, y >> high
    middle = x1 * y0 + ((x0 * y0) >> high)
    result: Array = x1 * y1 + (middle >> high) + (((middle & low) + x0 * y1) >> high)
    if a.dtype.kind == "i":
        result = result - numpy.where(a < 0, y, 0) - numpy.where(b < 0, x, 0)
    return result.view(a.dtype)


def shift_left(a: Array, amount: Array) -> Array:
    """Bits beyond the width are lost."""
    bits = a.dtype.itemsize * 8
    shifted = a << numpy.minimum(amount, bits - 1).astype(a.dtype)
    result: Array = numpy.where(amount >= bits, a.dtype.type(0), shifted)
    return result


def shift_right(a: Array, amount: Array) -> Array:
    """With the sign for signed types, with zeros for others."""
    bits = a.dtype.itemsize * 8
    shifted: Array = a >> numpy.minimum(amount, bits - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else numpy.where(amount >= bits, a.dtype.type(0), shifted)


def quotient(a: Array, b: Array) -> Array:
    """Toward zero; all ones where the divisor is zero."""
    safe = numpy.where(b == 0, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        result = a // safe
    else:
        least = numpy.iinfo(a.dtype).min
        overflow = (a == least) & (safe == -1)
        safe = numpy.where(overflow, a.dtype.type(1), safe)
        floor = a // safe
        result = floor + ((a % safe != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return numpy.where(b == 0, ~a.dtype.type(0), result)


def remainder(a: Array, b: Array) -> Array:
    """a - quotient * b, with the sign of a; a where the divisor is zero."""
    return numpy.where(b == 0, a, a - quotient(a, numpy.where(b == 0, b.dtype.type(1), b)) * b)


def count_ones(a: Array) -> Array:
    """Population count."""
    count: Array = numpy.bitwise_count(a.view(UNSIGNED[a.dtype.itemsize])).astype(numpy.uint32)
    return count


def leading_zeros(a: Array) -> Array:
    """Zero bits above the first one."""
    bits = a.dtype.itemsize * 8
    value = a.view(UNSIGNED[a.dtype.itemsize]).copy()
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < bits:
            value |= value >> value.dtype.type(shift)
    zeros: Array = (bits - numpy.bitwise_count(value)).astype(numpy.uint32)
    return zeros


def reverse_bits(a: Array) -> Array:
    """The bits in opposite order."""
    data = numpy.ascontiguousarray(a).view(numpy.uint8).reshape(-1, a.dtype.itemsize)
    bits = numpy.unpackbits(data, axis=1, bitorder="little")[:, ::-1]
    return numpy.packbits(bits, axis=1, bitorder="little").view(a.dtype).ravel()


def find_leading(instruction: Instruction) -> Operation:
    """bfind: the place of the first bit that differs from the sign; all ones for none."""

    def find(a: Array) -> Array:
        bits = a.dtype.itemsize * 8
        value = numpy.where(a < 0, ~a, a) if a.dtype.kind == "i" else a
        zeros = leading_zeros(value)
        place = zeros if "shiftamt" in instruction.modifiers else bits - 1 - zeros
        return numpy.where(zeros == bits, numpy.uint32(0xFFFFFFFF), place.astype(numpy.uint32))

    return find


def extract_bits(a: Array, start: Array, length: Array) -> Array:
    """bfe: a field of bits, its sign extended for signed types."""
    bits = a.dtype.itemsize * 8
    start, length = start & 0xFF, length & 0xFF
    field = shift_right(a.view(UNSIGNED[bits // 8]), start)
    unsigned = field.dtype.type
    mask = numpy.where(
        length >= bits, ~unsigned(0), shift_left(numpy.full(a.shape, unsigned(1)), length) - 1
    )
    field = field & mask
    if a.dtype.kind == "i":
        last = numpy.minimum(start + length - 1, bits - 1)
        negative = (shift_right(a, last) & 1 != 0) & (length > 0)
        field = numpy.where(negative, field | ~mask, field)
    return field.astype(unsigned).view(a.dtype)


def insert_bits(field: Array, into: Array, start: Array, length: Array) -> Array:
    """bfi: put the low bits of `field` into `into`."""
    unsigned = into.dtype.type
    bits = into.dtype.itemsize * 8
    start, length = start & 0xFF, length & 0xFF
    ones = numpy.where(
        length >= bits, ~unsigned(0), shift_left(numpy.full(into.shape, unsigned(1)), length) - 1
    ).astype(into.dtype)
    mask = shift_left(ones, start)
    return (into & ~mask) | (shift_left(field, start) & mask)


def permute_bytes(instruction: Instruction) -> Operation:
    """prmt: four bytes chosen of the eight of two registers."""
    special = set(instruction.modifiers) & {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"}
    if special:
        raise SyntaxFault(f"{instruction}: mode {special} of prmt is not supported")

    def permute(a: Array, b: Array, selector: Array) -> Array:
        both = numpy.stack([a, b], axis=1).view(numpy.uint8).reshape(-1, 8)
        result = numpy.zeros(a.shape, numpy.uint32)
        for index in range(4):
            choice = selector >> numpy.uint32(4 * index)
            byte = numpy.take_along_axis(both, (choice & 7).astype(numpy.int64)[:, None], 1)[:, 0]
            sign = numpy.where(byte & 0x80, numpy.uint8(0xFF), numpy.uint8(0))
            byte = numpy.where(choice & 8, sign, byte)
            result |= byte.astype(numpy.uint32) << numpy.uint32(8 * index)
        return result

    return permute


def funnel_shift(instruction: Instruction) -> Operation:
    """shf: 32 bits of a shifted pair of registers."""
    wraps, left = "wrap" in instruction.modifiers, "l" in instruction.modifiers

    def shift(low: Array, high: Array, amount: Array) -> Array:
        amount = (amount & 31 if wraps else numpy.minimum(amount, 32)).astype(numpy.uint64)
        pair = (high.astype(numpy.uint64) << numpy.uint64(32)) | low
        shifted = (pair << amount) >> numpy.uint64(32) if left else pair >> amount
        result: Array = shifted.astype(numpy.uint32)
        return result

    return shift


def logic3(instruction: Instruction) -> Operation:
    """lop3: any function of three bits, by its table."""

    def look_up(a: Array, b: Array, c: Array, table: Array) -> Array:
        result = numpy.zeros(a.shape, numpy.uint32)
        for row in range(8):
            chosen = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
            result |= numpy.where(table >> row & 1, chosen, 0).astype(numpy.uint32)
        return result

    return look_up


def dot_bytes(a: Array, b: Array, c: Array) -> Array:
    """dp4a: the sum of four products of bytes."""
    count = len(a)
    kinds = [numpy.int8 if x.dtype.kind == "i" else numpy.uint8 for x in (a, b)]
    rows = [
        numpy.ascontiguousarray(x).view(kind).reshape(count, 4).astype(numpy.int64)
        for x, kind in zip((a, b), kinds, strict=True)
    ]
    total: Array = (c + (rows[0] * rows[1]).sum(1)).astype(c.dtype)
    return total


def dot_halves(first: int) -> Operation:
    """dp2a: the sum of two products of 16-bit words and of bytes, from byte `first` of b on."""

    def multiply(a: Array, b: Array, c: Array) -> Array:
        count = len(a)
        words = numpy.int16 if a.dtype.kind == "i" else numpy.uint16
        bytes_ = numpy.int8 if b.dtype.kind == "i" else numpy.uint8
        left = numpy.ascontiguousarray(a).view(words).reshape(count, 2).astype(numpy.int64)
        right = numpy.ascontiguousarray(b).view(bytes_).reshape(count, 4)[:, first : first + 2]
        total: Array = (c + (left * right).sum(1)).astype(c.dtype)
        return total

    return multiply


INTEGER_OPERATIONS: Final[dict[str, Operation]] = {
    "add": numpy.add,
    "sub": numpy.subtract,
    "div": quotient,
    "rem": remainder,
    "min": numpy.minimum,
    "max": numpy.maximum,
    "neg": numpy.negative,
    "abs": numpy.abs,
    "and": numpy.bitwise_and,
    "or": numpy.bitwise_or,
    "xor": numpy.bitwise_xor,
    "not": numpy.invert,
    "cnot": lambda a: (a == 0).astype(a.dtype),
    "sad": lambda a, b, c: c + numpy.where(a < b, b - a, a - b).astype(c.dtype),
    "mul": numpy.multiply,
    "mad": lambda a, b, c: a * b + c,
}


def integer_step(instruction: Instruction, kind: str) -> Step:
    """add, mul, mad, and, ... of one integer type."""
    opcode, modifiers = instruction.opcode, instruction.modifiers
    destination, *sources = instruction.operands
    result_kind, operation = kind, INTEGER_OPERATIONS[opcode]
    kinds = [kind] * len(sources)
    if opcode in ("mul", "mad") and "wide" in modifiers:
        result_kind = wide(kind)
        kinds = [kind, kind, result_kind][: len(sources)]
        operation = multiply_wide(result_kind)
    elif opcode in ("mul", "mad") and "hi" in modifiers:
        operation = high_half if opcode == "mul" else lambda a, b, c: high_half(a, b) + c
    if "sat" in modifiers:
        operation = saturating(operation)
    if {"cc", "x2"} & set(modifiers) or opcode in ("addc", "subc", "madc"):
        raise SyntaxFault(f"{instruction}: carries and packed integers are not supported")
    return plain_step(instruction, operation, result_kind, kinds, destination)


def multiply_wide(kind: str) -> Operation:
    """The whole product of two integers, plus a third if there is one."""
    wanted = numpy.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}").type

    def multiply(a: Array, b: Array, c: Array | None = None) -> Array:
        product: Array = a.astype(wanted) * b.astype(wanted)
        return product if c is None else product + c

    return multiply


def saturating(operation: Operation) -> Operation:
    """Signed 32-bit arithmetic that ends at the bounds."""
    low, high = -(2**31), 2**31 - 1
    return lambda *v: numpy.clip(operation(*(x.astype(numpy.int64) for x in v)), low, high).astype(
        numpy.int32
    )


def plain_step(
    instruction: Instruction,
    operation: Operation,
    result_kind: str,
    kinds: list[str],
    destination: Any = None,
) -> Step:
    """Read operands of stated types, compute, write."""
    line = instruction.line
    first = instruction.operands[0] if destination is None else destination
    sources = instruction.operands[1:]
    reads = [reader(source, kind, line) for source, kind in zip(sources, kinds, strict=True)]
    write = writer(first, result_kind, line)

    def step(state: State, who: Who) -> None:
        write(state, who, operation(*(read(state, who) for read in reads)))

    return step


# --- comparison and selection

COMPARISONS: Final[dict[str, Operation]] = {
    "eq": numpy.equal,
    "ne": numpy.not_equal,
    "lt": numpy.less,
    "le": numpy.less_equal,
    "gt": numpy.greater,
    "ge": numpy.greater_equal,
    "lo": numpy.less,
    "ls": numpy.less_equal,
    "hi": numpy.greater,
    "hs": numpy.greater_equal,
}
COMBINATIONS: Final[dict[str, Operation]] = {
    "and": numpy.logical_and,
    "or": numpy.logical_or,
    "xor": numpy.logical_xor,
}


def compare_floats(name: str, a: Array, b: Array) -> Array:
    """An ordered comparison, or with a `u` behind its name one that NaN fulfils."""
    unordered = numpy.isnan(a) | numpy.isnan(b)
    if name == "num":
        return ~unordered
    if name == "nan":
        return unordered
    is_ordered = name in COMPARISONS
    found: Array = COMPARISONS[name if is_ordered else name[:-1]](a, b)
    return found & ~unordered if is_ordered else found | unordered


def comparison(instruction: Instruction, kind: str) -> Operation:
    """Function of two operands that setp and set compute."""
    name = instruction.modifiers[0]
    if kind in FLOATS:
        is_flushed = "ftz" in instruction.modifiers
        return lambda a, b: compare_floats(
            name, as_numbers(kind, a, is_flushed), as_numbers(kind, b, is_flushed)
        )
    return COMPARISONS[name]


def setp_step(instruction: Instruction) -> Step:
    """setp: one or two predicates of a comparison."""
    kind, line = instruction.types[-1], instruction.line
    target, a, b, *third = instruction.operands
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, Sink())
    compare = comparison(instruction, kind)
    combine = next((COMBINATIONS[m] for m in instruction.modifiers if m in COMBINATIONS), None)
    reads = [reader(a, kind, line), reader(b, kind, line)]
    read_third = reader(third[0], "pred", line) if third else None
    write, write_second = writer(first, "pred", line), writer(second, "pred", line)

    def step(state: State, who: Who) -> None:
        result = compare(reads[0](state, who), reads[1](state, who))
        opposite = ~result
        if combine is not None and read_third is not None:
            other = read_third(state, who)
            result, opposite = combine(result, other), combine(opposite, other)
        write(state, who, result)
        write_second(state, who, opposite)

    return step


def set_step(instruction: Instruction) -> Step:
    """set: all ones, or 1.0, where a comparison holds."""
    result_kind, kind = instruction.types
    compare = comparison(instruction, kind)
    true: Any = numpy.float32(1) if result_kind == "f32" else numpy.uint32(0xFFFFFFFF)
    return plain_step(
        instruction,
        lambda a, b: numpy.where(compare(a, b), true, type(true)(0)),
        result_kind,
        [kind, kind],
    )


def selp_step(instruction: Instruction) -> Step:
    """selp: the first where the predicate holds, else the second."""
    kind = instruction.types[-1]
    return plain_step(instruction, lambda a, b, p: numpy.where(p, a, b), kind, [kind, kind, "pred"])


def testp_step(instruction: Instruction) -> Step:
    """testp: a property of a float."""
    kind = instruction.types[-1]
    least = numpy.finfo(numpy.float32 if kind == "f32" else numpy.float64).tiny
    tests: dict[str, Operation] = {
        "finite": numpy.isfinite,
        "infinite": numpy.isinf,
        "number": lambda x: ~numpy.isnan(x),
        "notanumber": numpy.isnan,
        "normal": lambda x: numpy.isfinite(x) & (numpy.abs(x) >= least),
        "subnormal": lambda x: (x != 0) & (numpy.abs(x) < least),
    }
    return plain_step(instruction, tests[instruction.modifiers[0]], "pred", [kind])


# --- moves


def mov_step(instruction: Instruction) -> Step:
    """mov: a register, a constant, an address; packing and unpacking of vectors."""
    kind, line = instruction.types[-1], instruction.line
    target, source = instruction.operands
    if isinstance(source, Vector):
        return pack_step(target, source, kind, line)
    if isinstance(target, Vector):
        return unpack_step(target, source, kind, line)
    return plain_step(instruction, lambda a: a, kind, [kind])


def pack_step(target: Any, source: Vector, kind: str, line: int) -> Step:
    """mov.b64 d, {low, high}."""
    part = f"b{int(kind[1:]) // len(source.parts)}"
    reads = [reader(each, part, line) for each in source.parts]
    whole = UNSIGNED[int(kind[1:]) // 8]
    write = writer(target, kind, line)

    def step(state: State, who: Who) -> None:
        columns = numpy.stack([read(state, who) for read in reads], axis=1)
        write(state, who, numpy.ascontiguousarray(columns).view(whole)[:, 0])

    return step


def unpack_step(target: Vector, source: Any, kind: str, line: int) -> Step:
    """mov.b64 {low, high}, s."""
    part = f"b{int(kind[1:]) // len(target.parts)}"
    read = reader(source, kind, line)
    writes = [writer(each, part, line) for each in target.parts]
    narrow = UNSIGNED[int(part[1:]) // 8]

    def step(state: State, who: Who) -> None:
        columns = numpy.ascontiguousarray(read(state, who)).view(narrow)
        columns = columns.reshape(-1, len(writes))
        for index, write in enumerate(writes):
            write(state, who, columns[:, index].copy())

    return step


# --- the table


def shift_step(operation: Operation) -> Callable[[Instruction], Step]:
    """shl and shr: the amount is 32 bits wide whatever the type is."""
    return lambda i: plain_step(i, operation, i.types[-1], [i.types[-1], "u32"])


def counting_step(operation: Operation) -> Callable[[Instruction], Step]:
    """popc and clz: 32 bits of result."""
    return lambda i: plain_step(i, operation, "u32", [i.types[-1]])


def arithmetic_step(instruction: Instruction) -> Step:
    """Instructions that exist for integers and for floats."""
    kind = instruction.types[-1]
    if kind in FLOATS:
        return float_step(instruction, kind)
    if kind == "pred":
        return predicate_step(instruction)
    return integer_step(instruction, kind)


def predicate_step(instruction: Instruction) -> Step:
    """and, or, xor, not of predicates."""
    operations: dict[str, Callable[..., Any]] = {**COMBINATIONS, "not": numpy.logical_not}
    operation = operations[instruction.opcode]
    kinds = ["pred"] * (len(instruction.operands) - 1)
    return plain_step(instruction, operation, "pred", kinds)


def lop3_step(instruction: Instruction) -> Step:
    """lop3.b32 d, a, b, c, table."""
    return plain_step(instruction, logic3(instruction), "b32", ["b32", "b32", "b32", "u32"])


def dp4a_step(instruction: Instruction) -> Step:
    """dp4a.atype.btype."""
    first, second = instruction.types
    result = "s32" if "s32" in (first, second) else "u32"
    return plain_step(instruction, dot_bytes, result, [first, second, result])


def dp2a_step(instruction: Instruction) -> Step:
    """dp2a.mode.atype.btype, where mode says which half of b."""
    first, second = instruction.types
    result = "s32" if "s32" in (first, second) else "u32"
    operation = dot_halves(2 if "hi" in instruction.modifiers else 0)
    return plain_step(instruction, operation, result, [first, second, result])


STEPS: Final[dict[str, Callable[[Instruction], Step]]] = {
    **dict.fromkeys({*FLOAT_OPERATIONS, *INTEGER_OPERATIONS, "fma"}, arithmetic_step),
    "mov": mov_step,
    "setp": setp_step,
    "set": set_step,
    "selp": selp_step,
    "testp": testp_step,
    "shl": shift_step(shift_left),
    "shr": shift_step(shift_right),
    "popc": counting_step(count_ones),
    "clz": counting_step(leading_zeros),
    "brev": lambda i: plain_step(i, reverse_bits, i.types[-1], [i.types[-1]]),
    "bfind": lambda i: plain_step(i, find_leading(i), "u32", [i.types[-1]]),
    "bfe": lambda i: plain_step(i, extract_bits, i.types[-1], [i.types[-1], "u32", "u32"]),
    "bfi": lambda i: plain_step(
        i, insert_bits, i.types[-1], [i.types[-1], i.types[-1], "u32", "u32"]
    ),
    "prmt": lambda i: plain_step(i, permute_bytes(i), "b32", ["b32", "b32", "b32"]),
    "shf": lambda i: plain_step(i, funnel_shift(i), "b32", ["b32", "b32", "u32"]),
    "lop3": lop3_step,
    "dp2a": dp2a_step,
    "dp4a": dp4a_step,
}
"""Translation of each arithmetic opcode to a step."""
