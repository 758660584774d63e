"""ldmatrix, stmatrix and mma.sync: products of fragments that a warp holds.

Which lane holds which element: PTX ISA 9.0, section 9.7.14.5 (mma) and 9.7.14.6 (ldmatrix). A
fragment is described by two functions of lane and element number, to row and to column. Products
are exact and summed in double; a card sums in its own order, and cuts off bits of small terms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy
from emulation.faults import ConvergenceFault, SyntaxFault
from emulation.memory import check_alignment
from emulation.numbers import bfloat_to_float, eight_bits_to_float

from executor.registers import Array, State, Step, Who, address_reader, reader, writer
from executor.syntax import Instruction, Operand, Vector

LANES: Final = numpy.arange(32)
GROUP: Final = LANES >> 2
IN_GROUP: Final = LANES & 3
BITS: Final = {
    "f64": 64,
    "tf32": 32,
    "f16": 16,
    "bf16": 16,
    "s8": 8,
    "u8": 8,
    "e4m3": 8,
    "e5m2": 8,
}
"""Bits of an element of A and B."""

Fragment = tuple[Array, Array]
"""Row and column of element e of lane l, at [l, e]."""


def a_fragment(k: int, bits: int) -> Fragment:
    """Fragment of A with 16 rows (8 for f64): pairs of registers step 8 rows down, then across."""
    per = max(32 // bits, 1)
    if bits == 64:
        return GROUP[:, None], IN_GROUP[:, None]
    elements = numpy.arange(16 * k // 32)
    register, within = elements // per, elements % per
    rows = GROUP[:, None] + 8 * (register % 2)[None]
    columns = IN_GROUP[:, None] * per + within[None] + (register // 2 * 4 * per)[None]
    return rows, columns


def b_fragment(k: int, bits: int) -> Fragment:
    """Fragment of B with 8 columns, as (k, n)."""
    per = max(32 // bits, 1)
    elements = numpy.arange(8 * k // 32)
    register, within = elements // per, elements % per
    ks = IN_GROUP[:, None] * per + within[None] + (register * 4 * per)[None]
    return ks, numpy.broadcast_to(GROUP[:, None], ks.shape)


def c_fragment(m: int) -> Fragment:
    """Fragment of C and D with 8 columns: two neighbors, then eight rows below."""
    elements = numpy.arange(m * 8 // 32)
    rows = GROUP[:, None] + 8 * (elements // 2)[None]
    return rows, IN_GROUP[:, None] * 2 + (elements % 2)[None]


def as_values(registers: list[Array], kind: str) -> Array:
    """Registers of each lane as numbers: (lanes, elements) doubles, or integers."""
    words = numpy.ascontiguousarray(numpy.stack(registers, axis=1))
    match kind:
        case "f64":
            return words.view(numpy.float64)
        case "f32":
            return words.view(numpy.float32).astype(numpy.float64)
        case "tf32":
            return (words & numpy.uint32(0xFFFFE000)).view(numpy.float32).astype(numpy.float64)
        case "f16":
            return words.view(numpy.float16).astype(numpy.float64)
        case "bf16":
            return bfloat_to_float(words.view(numpy.uint16)).astype(numpy.float64)
        case "e4m3" | "e5m2":
            return eight_bits_to_float(words.view(numpy.uint8), kind).astype(numpy.float64)
        case "s8" | "u8":
            return words.view(numpy.int8 if kind == "s8" else numpy.uint8).astype(numpy.int64)
        case "s32":
            return words.view(numpy.int32).astype(numpy.int64)
    raise SyntaxFault(f"fragments of .{kind} are not supported")


def as_registers(values: Array, kind: str) -> list[Array]:
    """Numbers of each lane as registers."""
    narrow: dict[str, Any] = {"f32": numpy.float32, "f16": numpy.float16, "f64": numpy.float64}
    if kind == "s32":
        words = values.astype(numpy.int64).astype(numpy.uint32)
    else:
        held = numpy.ascontiguousarray(values.astype(narrow[kind]))
        words = held.view(numpy.uint64 if kind == "f64" else numpy.uint32)
    return [words[:, index].copy() for index in range(words.shape[1])]


def whole_warps(state: State, who: Who, what: str) -> Array:
    """The threads as (warps, 32); raise ConvergenceFault where a lane is missing."""
    threads = state.who(who)
    if state.block_threads % 32 or threads.size % 32:
        raise ConvergenceFault(f"{what} needs whole warps, and {threads.size} threads execute it")
    warps = threads.reshape(-1, 32)
    if ((warps[:, 31] - warps[:, 0]) != 31).any() or (warps[:, 0] % 32).any():
        raise ConvergenceFault(f"{what} is executed by a part of a warp")
    return warps


def parts_of(operand: Operand) -> tuple[Operand, ...]:
    """The registers of a fragment."""
    return operand.parts if isinstance(operand, Vector) else (operand,)


@dataclass(frozen=True)
class Shape:
    """m16n8k16 and the like."""

    m: int
    n: int
    k: int


def shape_of(instruction: Instruction) -> Shape:
    """The shape that an instruction names."""
    for modifier in instruction.modifiers:
        if modifier[0] == "m" and "n" in modifier and "k" in modifier:
            m, rest = modifier[1:].split("n")
            n, k = rest.split("k")
            if m.isdigit() and n.isdigit() and k.isdigit():
                return Shape(int(m), int(n), int(k))
    raise SyntaxFault(f"{instruction}: no shape is named")


SHAPES: Final = {
    "f16": {(16, 8, 8), (16, 8, 16)},
    "bf16": {(16, 8, 8), (16, 8, 16)},
    "tf32": {(16, 8, 4), (16, 8, 8)},
    "s8": {(16, 8, 16), (16, 8, 32)},
    "u8": {(16, 8, 16), (16, 8, 32)},
    "e4m3": {(16, 8, 16), (16, 8, 32)},
    "e5m2": {(16, 8, 16), (16, 8, 32)},
    "f64": {(8, 8, 4)},
}
"""Shapes by the type of A."""


def mma_step(instruction: Instruction) -> Step:
    """mma.sync.aligned.shape.row.col.dtype.atype.btype.ctype d, a, b, c."""
    shape = shape_of(instruction)
    d_kind, a_kind, b_kind, c_kind = instruction.types[-4:]
    known = SHAPES.get(a_kind, set())
    if (shape.m, shape.n, shape.k) not in known or "sp" in instruction.modifiers:
        raise SyntaxFault(f"{instruction}: this shape of .{a_kind} is not supported")
    if [m for m in instruction.modifiers if m in ("row", "col")] != ["row", "col"]:
        raise SyntaxFault(f"{instruction}: only .row.col is supported")
    bits, line = BITS[a_kind], instruction.line
    maps = a_fragment(shape.k, bits), b_fragment(shape.k, bits), c_fragment(shape.m)
    operands = [parts_of(each) for each in instruction.operands]
    word = "b64" if a_kind == "f64" else "b32"
    reads = [[reader(p, word, line) for p in parts] for parts in operands[1:]]
    writes = [writer(p, word, line) for p in operands[0]]
    kinds = (a_kind, b_kind, c_kind)

    def step(state: State, who: Who) -> None:
        warps = whole_warps(state, who, str(instruction)).shape[0]
        tiles = []
        sizes = ((shape.m, shape.k), (shape.k, shape.n), (shape.m, shape.n))
        for parts, kind, (rows, columns), size in zip(reads, kinds, maps, sizes, strict=True):
            held = as_values([read(state, who) for read in parts], kind).reshape(warps, 32, -1)
            tile = numpy.zeros((warps, *size), held.dtype)
            tile[:, rows, columns] = held
            tiles.append(tile)
        result = tiles[0] @ tiles[1] + tiles[2]
        if "satfinite" in instruction.modifiers and d_kind == "s32":
            result = numpy.clip(result, -(2**31), 2**31 - 1)
        rows, columns = maps[2]
        lanes = result[:, rows, columns].reshape(warps * 32, -1)
        for write, value in zip(writes, as_registers(lanes, d_kind), strict=True):
            write(state, who, value)

    return step


def ldmatrix_step(instruction: Instruction) -> Step:
    """ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {d}, [address]."""
    if "m8n8" not in instruction.modifiers or "b16" not in instruction.modifiers:
        raise SyntaxFault(f"{instruction}: only .m8n8.b16 is supported")
    count = next(int(m[1:]) for m in instruction.modifiers if m in ("x1", "x2", "x4"))
    is_transposed = "trans" in instruction.modifiers
    target, source = instruction.operands
    addresses = address_reader(source, instruction.line)
    writes = [writer(p, "b32", instruction.line) for p in parts_of(target)]

    def step(state: State, who: Who) -> None:
        warps = whole_warps(state, who, str(instruction))
        places = addresses(state, who).reshape(-1, 32)[:, : 8 * count]
        check_alignment(places.ravel(), 16)
        readers = warps[:, : 8 * count].ravel()
        words = state.shared.load(readers, places.ravel(), 4, 4)
        rows = numpy.ascontiguousarray(numpy.stack(words, 1)).view(numpy.uint16)
        matrices = rows.reshape(len(warps), count, 8, 8)
        if is_transposed:
            matrices = matrices.transpose(0, 1, 3, 2)
        pairs = numpy.ascontiguousarray(matrices).view(numpy.uint32)  # (warps, count, 8, 4)
        for index, write in enumerate(writes):
            write(state, who, pairs[:, index].reshape(-1).copy())

    return step


def stmatrix_step(instruction: Instruction) -> Step:
    """stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [address], {s}."""
    if "m8n8" not in instruction.modifiers or "b16" not in instruction.modifiers:
        raise SyntaxFault(f"{instruction}: only .m8n8.b16 is supported")
    count = next(int(m[1:]) for m in instruction.modifiers if m in ("x1", "x2", "x4"))
    is_transposed = "trans" in instruction.modifiers
    target, source = instruction.operands
    addresses = address_reader(target, instruction.line)
    reads = [reader(p, "b32", instruction.line) for p in parts_of(source)]

    def step(state: State, who: Who) -> None:
        warps = whole_warps(state, who, str(instruction))
        places = addresses(state, who).reshape(-1, 32)[:, : 8 * count]
        check_alignment(places.ravel(), 16)
        pairs = numpy.stack([r(state, who).reshape(-1, 8, 4) for r in reads], axis=1)
        matrices = numpy.ascontiguousarray(pairs).view(numpy.uint16)
        if is_transposed:
            matrices = numpy.ascontiguousarray(matrices.transpose(0, 1, 3, 2))
        rows = matrices.reshape(-1, 8).view(numpy.uint32)
        values = [rows[:, index].copy() for index in range(4)]
        state.shared.store(warps[:, : 8 * count].ravel(), places.ravel(), 4, values)

    return step


def movmatrix_step(instruction: Instruction) -> Step:
    """movmatrix.sync.aligned.m8n8.trans.b16 d, a."""
    target, source = instruction.operands
    read, write = reader(source, "b32", instruction.line), writer(target, "b32", instruction.line)

    def step(state: State, who: Who) -> None:
        warps = whole_warps(state, who, str(instruction))
        matrices = read(state, who).copy().view(numpy.uint16).reshape(len(warps), 8, 8)
        turned = numpy.ascontiguousarray(matrices.transpose(0, 2, 1)).view(numpy.uint32)
        write(state, who, turned.reshape(-1).copy())

    return step


MATRIX_STEPS: Final[dict[str, Callable[[Instruction], Step]]] = {
    "mma": mma_step,
    "ldmatrix": ldmatrix_step,
    "stmatrix": stmatrix_step,
    "movmatrix": movmatrix_step,
}
"""Translation of each matrix opcode to a step."""
