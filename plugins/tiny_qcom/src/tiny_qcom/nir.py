"""NIR of Mesa, from linear UOps, as a listing that `mesa.py` replays through Mesa's builder.

A line is an instruction: `%7 = iadd %5 %6`. Values are scalars of 1, 32 or 64 bits; integers of 8
and 16 bits live in 32, extended by their sign or by zeros; vectors exist in memory alone. float64
is refused here: Mesa's compiler ends the process when it meets one. float16 is stored, and computed
in float32: an operation on halves whose result becomes a float loses its rounding in that compiler,
and the hardware makes zeros of halves below 2**-14 (Mesa: shaderDenormPreserveFloat16 is false).
A product that only a sum of floats uses is computed with it, as mad.f32.

    kernel NAME / block X Y Z / shared BYTES / arguments BYTES
    image N SLOT read|written|texels|halves
    %0 = const BITS NUMBER      %1 = argument BITS OFFSET     %2 = group AXIS    %3 = thread AXIS
    %8 = pixel N %column %row   %9 = texel N %place
    %4 = load SPACE BITS COUNT ALIGN %place       store SPACE BITS COUNT ALIGN %value.. %place
    variable NAME BITS COUNT    %5 = get NAME [%index]        set NAME %value [%index]
    if %gate / else / endif     %6 = phi %yes %no             loop / break / endloop     barrier
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from tiny_qcom import halves
from tiny_qcom.code import Image
from tiny_qcom.listing import Lanes, Listing
from tiny_qcom.texels import TEXEL
from tinycore.dtype import DType, ImageDType, PointerDType, Scalar, dtypes
from tinycore.errors import UnsupportedError
from tinycore.render.base import LinearKernel, Renderer, pointer_of
from tinycore.render.facts import is_register, is_safe_division, is_safe_shift
from tinycore.render.literals import as_stored
from tinycore.uop.node import UOp
from tinycore.uop.op import BOOL_ARITHMETIC, COMPARISON, SHIFTS, Op

__all__ = ["Nir"]

WORD_BYTES: Final = 4
POINTER_BYTES: Final = 8
WORDS_AT_ONCE: Final = 4
"""Words that one instruction moves."""

FLOAT_OPERATIONS: Final = {
    Op.ADD: "fadd",
    Op.SUB: "fsub",
    Op.MUL: "fmul",
    Op.FDIV: "fdiv",
    Op.RECIPROCAL: "frcp",
    Op.SQRT: "fsqrt",
    Op.NEG: "fneg",
    Op.MULACC: "ffma",
    Op.TRUNC: "ftrunc",
}
APPROXIMATE_OPERATIONS: Final = {Op.EXP2: "fexp2"}
"""Instructions that are off by 3 + 2 * |x| units in the last place at most, as Vulkan's "Precision
of Individual Operations" allows and Mesa's driver for Adrenos relies on."""
INTEGER_OPERATIONS: Final = {
    Op.ADD: "iadd",
    Op.SUB: "isub",
    Op.MUL: "imul",
    Op.NEG: "ineg",
    Op.AND: "iand",
    Op.OR: "ior",
    Op.XOR: "ixor",
    Op.SHL: "ishl",
}
SIGNED: Final = {Op.MAX: "imax", Op.MIN: "imin", Op.IDIV: "idiv", Op.MOD: "irem", Op.SHR: "ishr"}
UNSIGNED: Final = {Op.MAX: "umax", Op.MIN: "umin", Op.IDIV: "udiv", Op.MOD: "umod", Op.SHR: "ushr"}
WRAPPING: Final = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.MULACC, Op.SHL, Op.IDIV, Op.MOD})
"""Ops whose result may leave the range of a narrow integer."""
COMPARISONS: Final = {
    "float": {Op.CMPLT: "flt", Op.CMPEQ: "feq", Op.CMPNE: "fneu"},
    "int": {Op.CMPLT: "ilt", Op.CMPEQ: "ieq", Op.CMPNE: "ine"},
    "uint": {Op.CMPLT: "ult", Op.CMPEQ: "ieq", Op.CMPNE: "ine"},
}
LEAST: Final = {32: -(1 << 31), 64: -(1 << 63)}


@dataclass(frozen=True)
class Nir(Renderer):
    """NIR for Mesa's compiler of Adrenos."""

    name: ClassVar[str] = "IR3"
    vector_ops: ClassVar[bool] = False
    emulated: ClassVar[frozenset[DType]] = frozenset(
        {dtypes.float16, dtypes.bfloat16, *dtypes.fp8s}
    )
    converts: ClassVar[frozenset[DType]] = frozenset({dtypes.float16})
    lacking: ClassVar[frozenset[DType]] = frozenset({dtypes.float64})
    native_ops: ClassVar[frozenset[Op]] = frozenset(
        {*FLOAT_OPERATIONS, *INTEGER_OPERATIONS, Op.IDIV, Op.MOD, Op.SHR, *COMPARISON}
        | {Op.WHERE, Op.CAST, Op.BITCAST}
    )
    approximate: ClassVar[frozenset[Op]] = frozenset(APPROXIMATE_OPERATIONS)

    # --- the frame

    def render(self, kernel: LinearKernel) -> str:
        """The listing of a kernel."""
        out = Listing(kernel)
        images = {u for u in kernel.buffers if isinstance(u.dtype, ImageDType)}
        for u in sorted(images, key=lambda u: (u.arg not in kernel.written, u.arg)):
            out.images[u] = len(out.images)
        for u in sorted({pointer_of(u.src[0]) for u in out.texels}, key=lambda u: u.arg):
            out.images[u] = len(out.images)
        for u in kernel.uops:
            if u not in out.products:
                self.write(u, out)
        slots = max((u.arg for u in kernel.buffers), default=-1) + 1
        x, y, z = kernel.launch("block")
        head = [
            f"kernel {kernel.name}",
            f"block {x} {y} {z}",
            f"shared {kernel.shared_bytes}",
            f"arguments {(slots + len(kernel.variables)) * POINTER_BYTES}",
        ]
        for u, number in out.images.items():
            how = "written" if u.arg in kernel.written else "read"
            if not isinstance(u.dtype, ImageDType):
                how = Image.HALVES if u.dtype.itemsize < WORD_BYTES else Image.TEXELS
            head.append(f"image {number} {u.arg} {how}")
        head += [f"{name} = const {bits} {n:#x}" for (bits, n), name in out.constants.items()]
        return "\n".join([*head, *out.lines]) + "\n"

    def bits(self, dtype: DType, out: Listing) -> int:
        """The width that values of a type are held in."""
        scalar = dtype.scalar()
        if scalar is dtypes.float64:
            raise UnsupportedError(
                "an Adreno has no float64: compute in float32, or on another device"
            )
        if scalar is dtypes.bool:
            return 1
        if scalar is dtypes.index:
            return out.kernel.index_bits
        return 64 if scalar.itemsize == POINTER_BYTES else 32

    # --- one node

    def write(self, u: UOp, out: Listing) -> None:
        """Add what one node stands for."""
        match u.op:
            case Op.DEFINE_GLOBAL:
                self.write_buffer(u, out)
            case Op.DEFINE_VAR:
                self.write_variable(u, out)
            case Op.DEFINE_LOCAL:
                out.values[u] = (out.constant(32, out.kernel.shared_layout[u]),)
            case Op.DEFINE_REG:
                assert isinstance(u.dtype, PointerDType)
                base = u.dtype.base
                size = u.dtype.size * base.count
                bits = self.bits(base, out)
                for lane in range(base.count if is_register(u) else 1):
                    count = 1 if is_register(u) else size
                    out.put(f"variable r{u.arg}.{lane} {bits} {count}")
            case Op.SPECIAL:
                kind = {"grid": "group", "block": "thread"}[u.arg[:-1]]
                found = out.new(kind, u.arg[-1])
                wide = self.bits(u.dtype, out) == 64
                out.values[u] = (out.new("u2u64", found) if wide else found,)
            case Op.CONST:
                out.values[u] = (self.literal(u.dtype, u.arg, out),)
            case Op.RANGE:
                self.open_loop(u, out)
            case Op.END:
                self.close_loop(out)
            case Op.LOAD:
                self.write_load(u, out)
            case Op.STORE:
                self.write_store(u, out)
            case Op.BARRIER:
                out.put("barrier")
            case Op.VECTORIZE:
                out.values[u] = tuple(out.values[s][0] for s in u.src)
            case Op.EXTRACT:
                count = u.src[0].dtype.count
                lanes = (out.values[u.src[lane // count]][lane % count] for lane in u.arg)
                out.values[u] = tuple(lanes)
            case Op.INDEX | Op.PIXEL | Op.SINK | Op.GROUP | Op.AFTER:
                return
            case _:
                out.values[u] = (self.computed(u, out),)

    def write_buffer(self, u: UOp, out: Listing) -> None:
        """The address of a buffer; an image has a number instead."""
        if not isinstance(u.dtype, ImageDType):
            out.values[u] = (out.new("argument", 64, u.arg * POINTER_BYTES),)

    def write_variable(self, u: UOp, out: Listing) -> None:
        """A number that is given at the launch."""
        kernel = out.kernel
        slots = max((b.arg for b in kernel.buffers), default=-1) + 1
        place = (slots + kernel.variables.index(u)) * POINTER_BYTES
        out.values[u] = (out.new("argument", self.bits(u.dtype, out), place),)

    def literal(self, dtype: DType, value: Scalar, out: Listing) -> str:
        """A constant."""
        if dtype.kind == "float":
            (number,) = struct.unpack("<I", struct.pack("<f", as_stored(dtype, float(value))))
            return out.constant(32, number)
        return out.constant(self.bits(dtype, out), int(value))

    # --- loops

    def open_loop(self, u: UOp, out: Listing) -> None:
        """The head of a loop."""
        bits = self.bits(u.dtype, out)
        (end,) = out.values[u.src[0]]
        name = f"i{out.count}"
        out.put(f"variable {name} {bits} 1")
        out.put(f"set {name} {out.constant(bits, 0)}")
        out.put("loop")
        counter = out.new("get", name)
        out.put(f"if {out.new('ige', counter, end)}")
        out.put("break")
        out.put("endif")
        out.values[u] = (counter,)
        out.loops.append((name, out.constant(bits, 1)))

    def close_loop(self, out: Listing) -> None:
        """The end of the innermost loop."""
        name, one = out.loops.pop()
        out.put(f"set {name} {out.new('iadd', out.new('get', name), one)}")
        out.put("endloop")

    # --- memory

    def place(self, index: UOp, out: Listing) -> str:
        """The address of an INDEX: 64 bits of global memory, 32 of shared."""
        pointer, where = pointer_of(index), index.src[1]
        assert isinstance(pointer.dtype, PointerDType)
        size = pointer.dtype.base.scalar().itemsize
        (base,), (number,) = out.values[pointer], out.values[where]
        wide = out.kernel.index_bits == 64
        if pointer.op is Op.DEFINE_LOCAL:
            if wide:
                number = out.new("u2u32", number)
            return out.new("iadd", base, out.new("imul", number, out.constant(32, size)))
        if not wide:
            number = out.new("i2i64", number)
        shift = out.constant(32, size.bit_length() - 1)
        return out.new("iadd", base, out.new("ishl", number, shift) if size > 1 else number)

    def write_load(self, u: UOp, out: Listing) -> None:
        """Load at an INDEX, or the alternative if its gate is false."""
        index = u.src[0]
        if index.op is Op.PIXEL:
            self.write_pixel_load(u, out)
            return
        if u in out.texels:
            self.write_texel_load(u, out)
            return
        pointer = pointer_of(index)
        gate = out.values[index.src[2]][0] if len(index.src) == 3 else ""
        zero = self.literal(u.dtype.scalar(), 0, out)
        others = out.values[u.src[1]] if len(u.src) > 1 else (zero,) * u.dtype.count
        if gate:
            out.put(f"if {gate}")
        found = self.loaded(index, pointer, u.dtype, out)
        if gate:
            out.put("else")
            out.put("endif")
            found = tuple(out.new("phi", a, b) for a, b in zip(found, others, strict=True))
        out.values[u] = found

    def loaded(self, index: UOp, pointer: UOp, dtype: DType, out: Listing) -> Lanes:
        """Lanes from memory."""
        if pointer.op is Op.DEFINE_REG:
            if is_register(pointer):
                return tuple(out.new("get", f"r{pointer.arg}.{n}") for n in range(dtype.count))
            return tuple(
                out.new("get", f"r{pointer.arg}.0", self.element(index, n, out))
                for n in range(dtype.count)
            )
        space = "shared" if pointer.op is Op.DEFINE_LOCAL else "global"
        if space == "global" and pointer.arg not in out.kernel.written:
            space = "constant"
        size, count = dtype.scalar().itemsize, dtype.count
        total = size * count
        unit = size if count == 1 or size >= WORD_BYTES else min(total, WORD_BYTES)
        parts = []
        for place, _, words in self.accesses(index, pointer, total // unit, unit, out):
            name = out.new("load", space, unit * 8, words, words * unit, place)
            parts += [out.new("lane", name, n) for n in range(words)] if words > 1 else [name]
        if unit == size:
            return tuple(self.extended(part, dtype, out) for part in parts)
        return tuple(lane for part in parts for lane in self.apart(part, unit, dtype, out))

    def element(self, index: UOp, lane: int, out: Listing) -> str:
        """The number of an element of a thread's own array, as 32 bits."""
        (number,) = out.values[index.src[1]]
        if out.kernel.index_bits == 64:
            number = out.new("u2u32", number)
        return out.new("iadd", number, out.constant(32, lane)) if lane else number

    def extended(self, value: str, dtype: DType, out: Listing) -> str:
        """Loaded value, widened to the register size of its type."""
        scalar = dtype.scalar()
        if scalar is dtypes.bool:
            return out.new("ine", out.new("u2u32", value), out.constant(32, 0))
        if scalar.itemsize >= WORD_BYTES:
            return value
        return out.new("i2i32" if scalar.kind == "int" else "u2u32", value)

    def apart(self, word: str, unit: int, dtype: DType, out: Listing) -> list[str]:
        """The lanes of a word."""
        scalar = dtype.scalar()
        if unit < WORD_BYTES:
            word = out.new("u2u32", word)
        bits = scalar.itemsize * 8
        lanes = []
        for start in range(0, unit * 8, bits):
            up = out.new("ishl", word, out.constant(32, 32 - bits - start))
            shift = "ishr" if scalar.kind == "int" else "ushr"
            lane = out.new(shift, up, out.constant(32, 32 - bits))
            is_bool = scalar is dtypes.bool
            lanes.append(out.new("ine", lane, out.constant(32, 0)) if is_bool else lane)
        return lanes

    def write_store(self, u: UOp, out: Listing) -> None:
        """Write a value at an INDEX, where its gate holds."""
        index, value = u.src
        if index.op is Op.PIXEL:
            self.write_pixel_store(u, out)
            return
        pointer, lanes = pointer_of(index), out.values[value]
        gate = out.values[index.src[2]][0] if len(index.src) == 3 else ""
        if gate:
            out.put(f"if {gate}")
        if pointer.op is Op.DEFINE_REG:
            for n, lane in enumerate(lanes):
                if is_register(pointer):
                    out.put(f"set r{pointer.arg}.{n} {lane}")
                else:
                    out.put(f"set r{pointer.arg}.0 {lane} {self.element(index, n, out)}")
        else:
            self.store(index, pointer, value.dtype, lanes, out)
        if gate:
            out.put("endif")

    def store(self, index: UOp, pointer: UOp, dtype: DType, lanes: Lanes, out: Listing) -> None:
        """Lanes to memory, side by side."""
        scalar = dtype.scalar()
        size, count = scalar.itemsize, dtype.count
        if scalar is dtypes.bool:
            lanes = tuple(out.new("b2i32", lane) for lane in lanes)
        total = size * count
        unit = size if count == 1 or size >= WORD_BYTES else min(total, WORD_BYTES)
        if unit > size:
            per = unit // size
            lanes = tuple(
                self.together(lanes[n : n + per], size * 8, out) for n in range(0, count, per)
            )
        if unit == 1:  # Mesa's process ends on a bool of a full register that becomes a byte
            lanes = tuple(out.new("ior", lane, out.constant(32, 1 << 8)) for lane in lanes)
        if unit < WORD_BYTES:
            lanes = tuple(out.new(f"u2u{unit * 8}", lane) for lane in lanes)
        space = "shared" if pointer.op is Op.DEFINE_LOCAL else "global"
        for place, start, words in self.accesses(index, pointer, len(lanes), unit, out):
            part = lanes[start : start + words]
            out.put(f"store {space} {unit * 8} {words} {words * unit} {' '.join(part)} {place}")

    def accesses(
        self, index: UOp, pointer: UOp, words: int, unit: int, out: Listing
    ) -> Iterator[tuple[str, int, int]]:
        """Place, first word and number of words of each instruction that moves a vector."""
        place = self.place(index, out)
        bits = 32 if pointer.op is Op.DEFINE_LOCAL else 64
        for start in range(0, words, WORDS_AT_ONCE):
            moved = out.new("iadd", place, out.constant(bits, start * unit)) if start else place
            yield moved, start, min(words - start, WORDS_AT_ONCE)

    @staticmethod
    def together(lanes: Lanes, bits: int, out: Listing) -> str:
        """The word of some lanes."""
        mask = out.constant(32, (1 << bits) - 1)
        word = ""
        for number, lane in enumerate(lanes):
            part = out.new("iand", lane, mask)
            if number:
                part = out.new("ishl", part, out.constant(32, bits * number))
            word = out.new("ior", word, part) if word else part
        return word

    def write_pixel_load(self, u: UOp, out: Listing) -> None:
        """Four floats of a pixel."""
        index = u.src[0]
        pixel = out.new("pixel", out.images[index.src[0]], *self.coordinates(index, out))
        out.values[u] = tuple(out.new("lane", pixel, n) for n in range(4))

    def write_texel_load(self, u: UOp, out: Listing) -> None:
        """Four floats or halves of a buffer, or more, as pixels in a row."""
        pointer, (place,) = pointer_of(u.src[0]), out.values[u.src[0].src[1]]
        if out.kernel.index_bits == 64:
            place = out.new("u2u32", place)
        number = out.new("ushr", place, out.constant(32, 2))
        lanes: list[str] = []
        for part in range(u.dtype.count // TEXEL):
            place = out.new("iadd", number, out.constant(32, part)) if part else number
            texel = out.new("texel", out.images[pointer], place)
            lanes += [out.new("lane", texel, n) for n in range(TEXEL)]
        out.values[u] = tuple(lanes)
        if u.dtype.itemsize < WORD_BYTES:
            out.widened.update(lanes)

    def write_pixel_store(self, u: UOp, out: Listing) -> None:
        """Four floats to a pixel."""
        index, value = u.src
        gate = out.values[index.src[3]][0] if len(index.src) == 4 else ""
        if gate:
            out.put(f"if {gate}")
        place = " ".join(self.coordinates(index, out))
        out.put(f"draw {out.images[index.src[0]]} {place} {' '.join(out.values[value])}")
        if gate:
            out.put("endif")

    def coordinates(self, index: UOp, out: Listing) -> list[str]:
        """Column and row of a PIXEL, as 32 bits."""
        found = [out.values[s][0] for s in index.src[1:3]]
        if out.kernel.index_bits == 64:
            found = [out.new("u2u32", name) for name in found]
        return found

    # --- values

    def computed(self, u: UOp, out: Listing) -> str:
        """The name of what a node computes."""
        if u.op is Op.ADD and not out.products.isdisjoint(u.src):
            first, second = u.src if u.src[0] in out.products else u.src[::-1]
            return out.new("ffma", *(out.values[s][0] for s in (*first.src, second)))
        operands = [out.values[s][0] for s in u.src]
        if u.op is Op.CAST:
            return self.cast(u.dtype, u.src[0].dtype, operands[0], out)
        if u.op is Op.BITCAST:
            return self.bitcast(u.dtype, u.src[0].dtype, operands[0], out)
        if u.op is Op.WHERE:
            return out.new("bcsel", *operands)
        if u.op in COMPARISON:
            return self.compared(u, operands, out)
        if u.dtype is dtypes.bool:
            op = BOOL_ARITHMETIC.get(u.op, u.op)
            return out.new(INTEGER_OPERATIONS[op], *operands)
        if u.dtype.kind == "float":
            if u.op not in FLOAT_OPERATIONS and u.op not in APPROXIMATE_OPERATIONS:
                raise self.refusal(u.op)
            return out.new((FLOAT_OPERATIONS | APPROXIMATE_OPERATIONS)[u.op], *operands)
        return self.integer(u, operands, out)

    def compared(self, u: UOp, operands: list[str], out: Listing) -> str:
        """A comparison; NaN differs from all."""
        of = u.src[0].dtype
        if of is dtypes.bool:
            a, b = operands
            if u.op is Op.CMPLT:
                return out.new("iand", out.new("inot", a), b)
            differ = out.new("ixor", a, b)
            return differ if u.op is Op.CMPNE else out.new("inot", differ)
        kind = "int" if of.kind == "index" else of.kind
        return out.new(COMPARISONS[kind][u.op], *operands)

    def integer(self, u: UOp, operands: list[str], out: Listing) -> str:
        """Arithmetic of integers, which wraps; narrow results are cut to their width."""
        bits = self.bits(u.dtype, out)
        table = INTEGER_OPERATIONS | (UNSIGNED if u.dtype.kind == "uint" else SIGNED)
        if u.op in SHIFTS:
            operands[1] = self.amount(u, operands[1], out)
        if u.op is Op.MULACC:
            product = out.new("imul", *operands[:2])
            found = out.new("iadd", product, operands[2])
        elif u.op in (Op.IDIV, Op.MOD):
            found = self.quotient(u, table[u.op], bits, operands, out)
        elif u.op in table:
            found = out.new(table[u.op], *operands)
        else:
            raise self.refusal(u.op)
        return self.cut(u.dtype, found, out) if u.op in WRAPPING else found

    def amount(self, u: UOp, amount: str, out: Listing) -> str:
        """The amount of a shift, as 32 bits, modulo the width."""
        if self.bits(u.src[1].dtype, out) == 64:
            amount = out.new("u2u32", amount)
        if is_safe_shift(u):
            return amount
        return out.new("iand", amount, out.constant(32, u.dtype.bits - 1))

    @staticmethod
    def quotient(u: UOp, word: str, bits: int, operands: list[str], out: Listing) -> str:
        """a / b or a % b where b may be 0, which gives 0, or -1, whose quotient wraps."""
        a, b = operands
        if is_safe_division(u):
            return out.new(word, a, b)
        zero, one = out.constant(bits, 0), out.constant(bits, 1)
        none = out.new("ieq", b, zero)
        safe = out.new("bcsel", none, one, b)
        if u.dtype.kind == "uint":
            return out.new("bcsel", none, zero, out.new(word, a, safe))
        minus = out.new("ieq", b, out.constant(bits, -1))
        safe = out.new("bcsel", minus, one, safe)
        found = out.new(word, a, safe)
        other = out.new("ineg", a) if u.op is Op.IDIV else zero
        return out.new("bcsel", none, zero, out.new("bcsel", minus, other, found))

    @staticmethod
    def cut(dtype: DType, value: str, out: Listing) -> str:
        """The low bits of a word, extended again, for types narrower than it."""
        if dtype.kind not in ("int", "uint") or dtype.itemsize >= WORD_BYTES:
            return value
        if dtype.kind == "uint":
            return out.new("iand", value, out.constant(32, (1 << dtype.bits) - 1))
        shift = out.constant(32, 32 - dtype.bits)
        return out.new("ishr", out.new("ishl", value, shift), shift)

    # --- conversions

    def cast(self, target: DType, source: DType, value: str, out: Listing) -> str:
        """A value of another type."""
        if target is source or value in out.widened:
            return value
        if source is dtypes.float16:
            return self.cast(target, dtypes.float32, halves.decoded(value, out), out)
        if target is dtypes.float16:
            return halves.encoded(self.cast(dtypes.float32, source, value, out), out)
        to, of = self.bits(target, out), self.bits(source, out)
        if target is dtypes.bool:
            zero = self.literal(source, 0, out)
            return out.new("fneu" if source.kind == "float" else "ine", value, zero)
        if source is dtypes.bool:
            word = {("float", 32): "b2f32"}.get((target.kind, to), f"b2i{to}")
            return out.new(word, value)
        if source.kind == "float":
            return value if target.kind == "float" else self.truncated(target, value, out)
        signed = source.kind in ("int", "index")
        if target.kind == "float":
            return out.new("i2f32" if signed else "u2f32", value)
        if to != of:
            word = "u2u32" if to == 32 else ("i2i64" if signed else "u2u64")
            value = out.new(word, value)
        return self.cut(target, value, out)

    def truncated(self, target: DType, value: str, out: Listing) -> str:
        """A float as an integer: what does not fit, and NaN, is the least int32, or for wide types
        the least int64, cut to the width.
        """
        if target is dtypes.uint64:
            return self.truncated_unsigned(value, out)
        wide = target.itemsize == POINTER_BYTES or target in (dtypes.uint32, dtypes.index)
        found = self.in_range(value, 64 if wide else 32, out)
        if wide and self.bits(target, out) == 32:
            return out.new("u2u32", found)
        return self.cut(target, found, out)

    def in_range(self, value: str, bits: int, out: Listing) -> str:
        """A float as a signed integer, the least one where it does not fit."""
        low, high = (self.literal(dtypes.float32, x * 2.0 ** (bits - 1), out) for x in (-1, 1))
        fits = out.new("iand", out.new("fge", value, low), out.new("flt", value, high))
        safe = out.new("bcsel", fits, value, self.literal(dtypes.float32, 0.0, out))
        found = out.new(f"f2i{bits}", safe)
        return out.new("bcsel", fits, found, out.constant(bits, LEAST[bits]))

    def truncated_unsigned(self, value: str, out: Listing) -> str:
        """A float as uint64: as int64 below 2**63, above it less 2**63 with the highest bit set."""
        middle, end = (self.literal(dtypes.float32, 2.0**power, out) for power in (63, 64))
        sign = out.constant(64, LEAST[64])
        small = self.in_range(value, 64, out)
        above = self.in_range(out.new("fsub", value, middle), 64, out)
        large = out.new("bcsel", out.new("flt", value, end), out.new("ixor", above, sign), sign)
        return out.new("bcsel", out.new("flt", value, middle), small, large)

    def bitcast(self, target: DType, source: DType, value: str, out: Listing) -> str:
        """The same bits as another type of the same width."""
        if value in out.widened:
            return value
        if dtypes.bool in (target, source):
            return self.cast(target, source, value, out)
        return self.cut(target, value, out)
