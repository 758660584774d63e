"""Renderers of LLVM IR dialects: textual IR with opaque pointers (LLVM 15 and newer).

Floor 2. Registers become allocas, which LLVM's `sroa` turns into values; loops become blocks with a
phi; a gate becomes a branch. A dialect states the function's frame and what differs in its tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from tinycore.dtype import DType, PointerDType, dtypes
from tinycore.render.base import STREAM, LinearKernel, Renderer, pointer_of, two_at_most
from tinycore.render.facts import RANGE_LETTERS, is_safe_division, is_safe_shift
from tinycore.render.llvm_types import (
    comparison_kind,
    constant,
    mask_name,
    splat,
    storage_name,
    stored_as,
    type_name,
    zero,
)
from tinycore.render.llvm_writer import Writer, convert, in_range, reinterpreted
from tinycore.uop.node import UOp
from tinycore.uop.op import BOOL_ARITHMETIC, COMPARISON, Op

FLOAT_OPS: Final = {
    # A product may be fused into a sum; nothing else about floats may change.
    Op.ADD: "fadd contract",
    Op.SUB: "fsub contract",
    Op.MUL: "fmul contract",
    Op.FDIV: "fdiv",
}
INT_OPS: Final = {
    Op.ADD: "add",
    Op.SUB: "sub",
    Op.MUL: "mul",
    Op.AND: "and",
    Op.OR: "or",
    Op.XOR: "xor",
    Op.SHL: "shl",
}
SIGNED_OPS: Final = {Op.IDIV: "sdiv", Op.MOD: "srem", Op.SHR: "ashr"}
UNSIGNED_OPS: Final = {Op.IDIV: "udiv", Op.MOD: "urem", Op.SHR: "lshr"}
INDEX_OPS: Final = {Op.ADD: "add nsw", Op.SUB: "sub nsw", Op.MUL: "mul nsw"}
"""Index math does not overflow."""

OPERATIONS_BY_KIND: Final[Mapping[str, Mapping[Op, str]]] = {
    "float": FLOAT_OPS,
    "int": INT_OPS | SIGNED_OPS,
    "index": INT_OPS | SIGNED_OPS | INDEX_OPS,
    "uint": INT_OPS | UNSIGNED_OPS,
    "bool": INT_OPS | UNSIGNED_OPS | {op: INT_OPS[same] for op, same in BOOL_ARITHMETIC.items()},
}
"""Instructions of two operands, by kind of type."""

PREDICATES: Final[Mapping[str, Mapping[Op, str]]] = {
    "float": {Op.CMPLT: "fcmp olt", Op.CMPEQ: "fcmp oeq", Op.CMPNE: "fcmp une"},
    "int": {Op.CMPLT: "icmp slt", Op.CMPEQ: "icmp eq", Op.CMPNE: "icmp ne"},
    "uint": {Op.CMPLT: "icmp ult", Op.CMPEQ: "icmp eq", Op.CMPNE: "icmp ne"},
}

INTRINSICS: Final = {Op.SQRT: "sqrt", Op.TRUNC: "trunc"}

SPELLED: Final = {Op.CAST, Op.BITCAST, Op.NEG, Op.RECIPROCAL, Op.WHERE, Op.MULACC}
"""Ops that code spells, and no table; so with MAX and MIN, except of bool."""


class MatrixIntrinsic(NamedTuple):
    """The code of a MATRIX by one unit: a call, of fragments that are vectors."""

    name: str
    """The intrinsic, without `llvm.`."""
    operand: str
    """The type of multiplied operands; fragments of other types are passed as the same bits."""
    arguments: tuple[str, ...]
    """The arguments in order: multiplied operands, the sum, and constants with their types."""


def shuffle_of(dtype: DType, parts: Sequence[str], lanes: Iterable[int], writer: Writer) -> str:
    """Lanes of one or two vectors of a type, by numbers."""
    kind, numbers = type_name(dtype), [f"i32 {lane}" for lane in lanes]
    first, second = parts if len(parts) == 2 else (parts[0], "poison")
    mask = f"<{len(numbers)} x i32> <{', '.join(numbers)}>"
    return writer.add(f"shufflevector {kind} {first}, {kind} {second}, {mask}")


class Llvm(Renderer):
    """LLVM IR."""

    native_ops: ClassVar[frozenset[Op]] = frozenset().union(
        SPELLED, INTRINSICS, *OPERATIONS_BY_KIND.values(), *PREDICATES.values()
    )
    spaces: ClassVar[Mapping[Op, str]] = {}
    """The address space of each kind of memory, by the op that defines it; else 0."""
    matrix: ClassVar[Mapping[str, MatrixIntrinsic]] = {}
    """The matrix instructions of the target, by the name of the unit in `Limits.matrix`."""
    safe_integers: ClassVar[bool] = True
    """True to guard operations that trap or give poison: division by zero, floats out of range."""

    def render(self, kernel: LinearKernel) -> str:
        """The source text of a kernel."""
        writer = Writer(kernel)
        self.write_body(writer)
        return self.assemble(writer)

    def write_body(self, writer: Writer, written: Callable[[UOp, int], bool] | None = None) -> None:
        """Write every node, but for those of which `written`, given their places, is true."""
        for place, u in enumerate(writer.kernel.uops):
            if written is None or not written(u, place):
                self.write(u, writer)

    # --- the frame around the body

    def assemble(self, writer: Writer) -> str:
        """Declarations, signature and body as one text."""
        raise NotImplementedError

    def parameters(self, writer: Writer) -> list[str]:
        """The buffers by slot, then the variables by name."""
        kernel = writer.kernel
        buffers = [
            f"{self.pointer(u)} {self.buffer_attributes(u, writer)}{writer[u]}"
            for u in kernel.buffers
        ]
        return buffers + [f"{type_name(u.dtype)} {writer[u]}" for u in kernel.variables]

    def buffer_attributes(self, buffer: UOp, writer: Writer) -> str:
        """Attributes of a buffer parameter, each word followed by a space."""
        return "noalias " if buffer.arg in writer.kernel.written else "noalias readonly "

    def extent(self, u: UOp, writer: Writer) -> tuple[str, str]:
        """Start and end of a loop."""
        return "0", writer[u.src[0]]

    def pointer(self, u: UOp) -> str:
        """The type of a pointer into the memory that a node points into."""
        space = self.spaces.get(pointer_of(u).op)
        return "ptr" if space is None else f"ptr addrspace({space})"

    def alignment(self, index: UOp, dtype: DType) -> str:
        """Alignment of an address: that of a scalar, or the one `Limits` requires of vectors.

        A kernel for strict memory was lowered so that each vector lies at a multiple of its size,
        as far as that is below `access_alignment`.
        """
        if pointer_of(index).op is Op.DEFINE_REG:
            return ""
        size = dtype.count * dtype.itemsize
        proven = min(self.limits.access_alignment, size & -size)
        return f", align {max(proven, dtype.itemsize)}"

    # --- one node

    def write(self, u: UOp, writer: Writer) -> None:
        """Write the instructions of one node."""
        match u.op:
            case Op.DEFINE_GLOBAL:
                writer.values[u] = f"%data{u.arg}"
            case Op.DEFINE_VAR:
                writer.values[u] = f"%{u.arg[0]}"
            case Op.DEFINE_REG | Op.DEFINE_LOCAL:
                self.write_memory(u, writer)
            case Op.CONST:
                writer.values[u] = constant(u.dtype, u.arg)
            case Op.RANGE:
                self.write_range(u, writer)
            case Op.END:
                self.write_end(u, writer)
            case Op.INDEX:
                writer.values[u] = self.address(u, writer)
            case Op.LOAD:
                self.write_load(u, writer)
            case Op.STORE:
                self.write_store(u, writer)
            case Op.BARRIER:
                self.write_barrier(u, writer)
            case Op.AFTER:
                writer.values[u] = writer.values.get(u.src[0], "")
            case Op.SINK | Op.GROUP:
                return
            case Op.SPECIAL:
                writer.values[u] = self.special(u, writer)
            case _:
                writer.values[u] = self.expression(u, writer)

    def write_barrier(self, u: UOp, writer: Writer) -> None:
        """Wait for the workgroup; nothing if there is none."""

    def special(self, u: UOp, writer: Writer) -> str:
        """The index of this thread."""
        raise NotImplementedError

    def write_memory(self, u: UOp, writer: Writer) -> None:
        """An alloca: for a register as its type, for local memory as bytes aligned for vectors."""
        assert isinstance(u.dtype, PointerDType)
        base, local = u.dtype.base, u.op is Op.DEFINE_LOCAL
        name = writer.values[u] = f"%{'temp' if local else 'acc'}{u.arg}"
        kind = storage_name(base)
        kind = kind if u.dtype.size == 1 else f"[{u.dtype.size} x {kind}]"
        align = ", align 64" if local else ""
        space = f", addrspace({self.spaces[u.op]})" if u.op in self.spaces else ""
        writer.entry.append(f"  {name} = alloca {kind}{align}{space}")

    def write_range(self, u: UOp, writer: Writer) -> None:
        """The head of a loop: its counter, and the test before each step."""
        letter = RANGE_LETTERS.get(u.arg.kind, "i")
        name = writer.fresh(letter + "_".join(map(str, u.arg.number)) + "_")
        writer.values[u] = f"%{name}"
        start, end = self.extent(u, writer)
        kind = type_name(u.dtype)
        writer.line(f"br label %{name}_enter")
        writer.label(f"{name}_enter")
        writer.line(f"br label %{name}_test")
        writer.label(f"{name}_test")
        phi = f"[ {start}, %{name}_enter ], [ %{name}_next, %{name}_step ]"
        writer.line(f"%{name} = phi {kind} {phi}")
        writer.line(f"%{name}_more = icmp slt {kind} %{name}, {end}")
        writer.line(f"br i1 %{name}_more, label %{name}_body, label %{name}_done")
        writer.label(f"{name}_body")

    def write_end(self, u: UOp, writer: Writer) -> None:
        """The step of a loop, and the block after it."""
        name = writer[u.src[1]].removeprefix("%")
        writer.line(f"br label %{name}_step")
        writer.label(f"{name}_step")
        writer.line(f"%{name}_next = add nuw nsw {type_name(u.src[1].dtype)} %{name}, 1")
        writer.line(f"br label %{name}_test")
        writer.label(f"{name}_done")

    def address(self, u: UOp, writer: Writer) -> str:
        """The pointer to an element."""
        pointer, index = pointer_of(u), u.src[1]
        if index.op is Op.CONST and index.arg == 0:
            return writer[pointer]
        assert isinstance(pointer.dtype, PointerDType)
        kind = storage_name(pointer.dtype.base)
        at = f"{type_name(index.dtype)} {writer[index]}"
        base = f"{self.pointer(pointer)} {writer[pointer]}"
        return writer.add(f"getelementptr inbounds {kind}, {base}, {at}", "p")

    def write_load(self, u: UOp, writer: Writer) -> None:
        """The value at an INDEX, or the alternative where its gate is false."""
        index = u.src[0]
        if len(index.src) < 3:
            writer.values[u] = self.load(u, writer)
            return
        other = writer[u.src[1]] if len(u.src) > 1 else zero(u.dtype)
        name = writer.fresh("gate")
        writer.line(f"br label %{name}")
        writer.label(name)
        writer.line(f"br i1 {writer[index.src[2]]}, label %{name}_read, label %{name}_done")
        writer.label(f"{name}_read")
        value = self.load(u, writer)
        writer.line(f"br label %{name}_done")
        writer.label(f"{name}_done")
        incoming = f"[ {value}, %{name}_read ], [ {other}, %{name} ]"
        writer.values[u] = writer.add(f"phi {type_name(u.dtype)} {incoming}", "load")

    def load(self, u: UOp, writer: Writer) -> str:
        """The loaded value, converted from its type in memory."""
        place = f"{self.pointer(u.src[0])} {writer[u.src[0]]}{self.alignment(u.src[0], u.dtype)}"
        name = writer.add(f"load {storage_name(u.dtype)}, {place}", "load")
        if u.dtype.kind != "bool":
            return name
        return writer.add(f"icmp ne {storage_name(u.dtype)} {name}, {zero(stored_as(u.dtype))}")

    def write_store(self, u: UOp, writer: Writer) -> None:
        """Write a value at an INDEX, where its gate holds."""
        index, value = u.src
        gated = len(index.src) == 3
        name = writer.fresh("gate") if gated else ""
        if gated:
            gate = writer[index.src[2]]
            writer.line(f"br i1 {gate}, label %{name}_write, label %{name}_done")
            writer.label(f"{name}_write")
        kind, text = storage_name(value.dtype), writer[value]
        if value.dtype.kind == "bool":
            text = writer.add(f"zext {type_name(value.dtype)} {text} to {kind}")
        if u.arg == STREAM:
            self.stream(f"{kind} {text}", index, value.dtype, writer)
        else:
            self.store(f"{kind} {text}", index, value.dtype, writer)
        if gated:
            writer.line(f"br label %{name}_done")
            writer.label(f"{name}_done")

    def store(self, value: str, index: UOp, dtype: DType, writer: Writer) -> None:
        """Write a value."""
        place = f"{self.pointer(index)} {writer[index]}{self.alignment(index, dtype)}"
        writer.line(f"store {value}, {place}")

    def stream(self, value: str, index: UOp, dtype: DType, writer: Writer) -> None:
        """Write a value past the caches, on targets that can."""
        self.store(value, index, dtype, writer)

    # --- expressions

    def expression(self, u: UOp, writer: Writer) -> str:
        """The value of a node that computes."""
        kind, source = type_name(u.dtype), u.src[0].dtype
        operands = [writer[s] for s in u.src]
        if u.op in COMPARISON:
            predicate = PREDICATES[comparison_kind(source)][u.op]
            return writer.add(f"{predicate} {type_name(source)} {operands[0]}, {operands[1]}")
        match u.op:
            case Op.CAST:
                return self.cast(u, writer)
            case Op.BITCAST:
                return writer.add(f"bitcast {type_name(source)} {operands[0]} to {kind}")
            case Op.VECTORIZE:
                return self.vectorize(u, writer)
            case Op.EXTRACT:
                return self.extract(u, writer)
            case Op.DOT:
                return self.dot(u, writer)
            case Op.INSTRUCTION:
                return writer.add(self.instruction(u, operands))
            case Op.MATRIX:
                return self.matrix_sum(u, writer)
            case Op.SHUFFLE:
                return self.shuffle(u, writer)
            case Op.WHERE:
                test, yes, no = operands
                return writer.add(f"select {type_name(source)} {test}, {kind} {yes}, {kind} {no}")
            case Op.NEG if u.dtype.kind == "float":
                return writer.add(f"fneg {kind} {operands[0]}")
            case Op.NEG:
                return writer.add(f"sub {kind} {zero(u.dtype)}, {operands[0]}")
            case Op.RECIPROCAL:
                return writer.add(f"fdiv {kind} {splat(u.dtype, 1)}, {operands[0]}")
            case Op.MULACC:
                return self.multiply_add(u, operands, writer)
            case Op.MAX | Op.MIN if u.dtype.kind != "bool":
                return self.extreme(u, operands, writer)
            case Op.IDIV | Op.MOD if self.safe_integers and not is_safe_division(u):
                return self.guarded_division(u, operands, writer)
            case Op.SHL | Op.SHR if self.safe_integers and not is_safe_shift(u):
                mask = splat(u.dtype, u.dtype.bits - 1)
                operands[1] = writer.add(f"and {kind} {operands[1]}, {mask}")
        if u.op in INTRINSICS:
            return writer.call(INTRINSICS[u.op], u.dtype, operands)
        instruction = OPERATIONS_BY_KIND[u.dtype.kind].get(u.op)
        if instruction is None:
            raise self.refusal(u.op)
        return writer.add(f"{instruction} {kind} {', '.join(operands)}")

    def multiply_add(self, u: UOp, operands: Sequence[str], writer: Writer) -> str:
        """a * b + c, fused where that is one instruction."""
        if u.dtype.kind == "float":
            return writer.call("fmuladd", u.dtype, operands)
        kind = type_name(u.dtype)
        product = writer.add(f"mul {kind} {operands[0]}, {operands[1]}")
        return writer.add(f"add {kind} {product}, {operands[2]}")

    def extreme(self, u: UOp, operands: Sequence[str], writer: Writer) -> str:
        """MAX or MIN: one instruction, and one more for NaN in `b`; NaN in `a` passes the first."""
        kind, (a, b) = type_name(u.dtype), operands
        less = PREDICATES[comparison_kind(u.dtype)][Op.CMPLT]
        pair = f"{a}, {b}" if u.op is Op.MAX else f"{b}, {a}"
        test, lanes = writer.add(f"{less} {kind} {pair}"), mask_name(u.dtype)
        value = writer.add(f"select {lanes} {test}, {kind} {b}, {kind} {a}")
        if u.dtype.kind != "float":
            return value
        number = writer.add(f"fcmp ord {kind} {b}, {zero(u.dtype)}")
        nan = splat(u.dtype, math.nan)
        return writer.add(f"select {lanes} {number}, {kind} {value}, {kind} {nan}")

    def guarded_division(self, u: UOp, operands: Sequence[str], writer: Writer) -> str:
        """IDIV or MOD that yields 0 for a zero divisor, and wraps for the least number over -1."""
        kind, lanes, (a, b) = type_name(u.dtype), mask_name(u.dtype), operands
        zeros, ones = zero(u.dtype), splat(u.dtype, 1)
        by_zero = trivial = writer.add(f"icmp eq {kind} {b}, {zeros}")
        signed = u.dtype.kind != "uint"
        if signed:
            by_minus = writer.add(f"icmp eq {kind} {b}, {splat(u.dtype, -1)}")
            trivial = writer.add(f"or {lanes} {by_zero}, {by_minus}")
        divisor = writer.add(f"select {lanes} {trivial}, {kind} {ones}, {kind} {b}")
        value = writer.add(f"{OPERATIONS_BY_KIND[u.dtype.kind][u.op]} {kind} {a}, {divisor}")
        if u.op is Op.MOD:
            return value
        if signed:
            negated = writer.add(f"sub {kind} {zeros}, {a}")
            value = writer.add(f"select {lanes} {by_minus}, {kind} {negated}, {kind} {value}")
        return writer.add(f"select {lanes} {by_zero}, {kind} {zeros}, {kind} {value}")

    # --- conversions

    def cast(self, u: UOp, writer: Writer) -> str:
        """A value converted."""
        source, text = u.src[0].dtype, writer[u.src[0]]
        if u.dtype.kind == "bool":
            compare = "fcmp une" if source.kind == "float" else "icmp ne"
            return writer.add(f"{compare} {type_name(source)} {text}, {zero(source)}")
        if source.kind == "float" and u.dtype.kind != "float":
            return self.truncation(u.dtype, source, text, writer)
        return convert(source, u.dtype, text, writer)

    def truncation(self, target: DType, source: DType, text: str, writer: Writer) -> str:
        """A float to an integer; values out of range become the least of a carrier type."""
        if not self.safe_integers:
            op = "fptoui" if target.kind == "uint" else "fptosi"
            return writer.add(f"{op} {type_name(source)} {text} to {type_name(target)}")
        if source.itemsize < 4:
            wider = dtypes.float32.vec(source.count)
            source, text = wider, convert(source, wider, text, writer)
        scalar = target.scalar()
        if scalar is dtypes.uint64:
            return self.unsigned_truncation(target, source, text, writer)
        wide = scalar.itemsize == 8 or scalar is dtypes.uint32
        carrier = (dtypes.int64 if wide else dtypes.int32).vec(target.count)
        fits = in_range(carrier, source, text, writer)
        kind = type_name(carrier)
        value = writer.add(f"fptosi {type_name(source)} {text} to {kind}")
        least = splat(carrier, -(2 ** (carrier.bits - 1)))
        value = writer.add(f"select {mask_name(target)} {fits}, {kind} {value}, {kind} {least}")
        return convert(carrier, target, value, writer)

    def unsigned_truncation(self, target: DType, source: DType, text: str, writer: Writer) -> str:
        """A float to uint64: below 2**63 as int64, from there on shifted down and up again."""
        kind, wide, lanes = type_name(source), type_name(target), mask_name(target)
        signed = dtypes.int64.vec(target.count)
        half, sign = splat(source, 2.0**63), splat(signed, -(2**63))
        low = self.truncation(signed, source, text, writer)
        shifted = writer.add(f"fsub {kind} {text}, {half}")
        high = writer.add(f"xor {wide} {self.truncation(signed, source, shifted, writer)}, {sign}")
        small = writer.add(f"fcmp olt {kind} {text}, {half}")
        fits = writer.add(f"fcmp olt {kind} {text}, {splat(source, 2.0**64)}")
        value = writer.add(f"select {lanes} {fits}, {wide} {high}, {wide} {sign}")
        return writer.add(f"select {lanes} {small}, {wide} {low}, {wide} {value}")

    # --- lanes

    def vectorize(self, u: UOp, writer: Writer) -> str:
        """Lanes as a vector: constants as a literal, equal lanes by a splat, others one by one."""
        kind, lane = type_name(u.dtype), type_name(u.dtype.scalar())
        if all(s.op is Op.CONST for s in u.src):
            return f"<{', '.join(f'{lane} {writer[s]}' for s in u.src)}>"
        if len(set(u.src)) == 1:
            first = writer.add(f"insertelement {kind} poison, {lane} {writer[u.src[0]]}, i64 0")
            mask = f"<{u.dtype.count} x i32> zeroinitializer"
            return writer.add(f"shufflevector {kind} {first}, {kind} poison, {mask}")
        value = "poison"
        for i, source in enumerate(u.src):
            value = writer.add(f"insertelement {kind} {value}, {lane} {writer[source]}, i64 {i}")
        return value

    def dot(self, u: UOp, writer: Writer) -> str:
        """Products of neighboring lanes, if `Limits.pair_bytes` is not 0."""
        raise self.refusal(u.op)

    def shuffle(self, u: UOp, writer: Writer) -> str:
        """The value of another lane, for targets whose devices state `Limits.shuffles`."""
        raise self.refusal(u.op)

    def matrix_sum(self, u: UOp, writer: Writer) -> str:
        """A product of fragments added to one, by the intrinsic that `matrix` has for the unit."""
        if u.arg.name not in self.matrix:
            raise self.refusal(u.op)
        intrinsic, total = self.matrix[u.arg.name], type_name(u.dtype)
        kinds = {"a": intrinsic.operand, "b": intrinsic.operand, "c": total}
        values = {
            name: reinterpreted(source.dtype, kinds[name], writer[source], writer)
            for name, source in zip("abc", u.src, strict=True)
        }
        parameters = [kinds.get(name, name.split()[0]) for name in intrinsic.arguments]
        arguments = [
            f"{kinds[name]} {values[name]}" if name in values else name
            for name in intrinsic.arguments
        ]
        called = f"{total} @llvm.{intrinsic.name}"
        writer.declarations.setdefault(f"declare {called}({', '.join(parameters)})")
        return writer.add(f"call {called}({', '.join(arguments)})")

    def extract(self, u: UOp, writer: Writer) -> str:
        """One lane by its number, several as a shuffle: of two vectors, as which pairs are joined
        where there are more.
        """
        parts, dtype = [writer[s] for s in u.src], u.src[0].dtype
        if u.dtype.count == 1:
            part, lane = divmod(u.arg[0], dtype.count)
            return writer.add(f"extractelement {type_name(dtype)} {parts[part]}, i64 {lane}")

        def join(first: str, second: str, lanes: int) -> str:
            return shuffle_of(dtype.scalar().vec(lanes // 2), (first, second), range(lanes), writer)

        parts, lanes = two_at_most(parts, dtype.count, join)
        return shuffle_of(dtype.scalar().vec(lanes), parts, u.arg, writer)
