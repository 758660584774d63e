"""WGSL, the language of WebGPU: what differs from C.

In memory everything has the layout that the host gives it. WGSL can address words of 32 bits only,
so bool and the types of 8 and 16 bits lie several to a word: a load cuts out its bits, a store puts
them in by two atomic operations, as neighbors may be written at the same time. In registers such
integers are i32 or u32, cut to their width after what may leave it; int64 and uint64 are two words
(see `_wide.py`). There is no float64.

What WGSL leaves undefined is defined here as the CPU's languages have it: an integer divided by
zero is 0; a float that does not fit an integer, or is NaN, becomes the least int32 (for types up to
int32) or the least int64, cut to the width of the type; a shift takes its amount modulo the width.
Compilers of WGSL may assume that there is neither NaN nor infinity, so both are looked for, and
made, by their bits. Source: WebGPU Shading Language, W3C Candidate Recommendation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from tiny_webgpu import _wide
from tiny_webgpu._index import refuse_huge, with_wide_index
from tiny_webgpu._rounds import most_rounds
from tiny_webgpu.program import ARGUMENTS, ENTRY
from tinycore.dtype import DType, PointerDType, Scalar, dtypes
from tinycore.errors import UnsupportedError
from tinycore.render import LinearKernel, pointer_of
from tinycore.render.cstyle import CStyle
from tinycore.render.facts import is_register, is_safe_division, is_safe_shift
from tinycore.render.guards import UNDEFINED_IN_C
from tinycore.render.writer import Writer, unwrapped
from tinycore.uop.node import UOp
from tinycore.uop.op import BOOL_ARITHMETIC, COMPARISON, Op

__all__ = ["Wgsl", "WgslWithoutHalves"]

HELPERS: Final = {
    "bits_are_nan": "fn bits_are_nan(a: f32) -> bool "
    "{ return (bitcast<u32>(a) & 0x7fffffffu) > 0x7f800000u; }",
    "maximum": "fn maximum(a: f32, b: f32) -> f32 "
    "{ return select(select(max(a, b), b, bits_are_nan(b)), a, bits_are_nan(a)); }",
    "minimum": "fn minimum(a: f32, b: f32) -> f32 "
    "{ return select(select(min(a, b), b, bits_are_nan(b)), a, bits_are_nan(a)); }",
    "differ": "fn differ(a: f32, b: f32) -> bool "
    "{ return a != b || bits_are_nan(a) || bits_are_nan(b); }",
    "same": "fn same(a: f32, b: f32) -> bool "
    "{ return a == b && !bits_are_nan(a) && !bits_are_nan(b); }",
    "infinity": "var<private> infinite_bits: u32 = 0x7f800000u;\n"
    "fn infinity() -> f32 { return bitcast<f32>(infinite_bits); }",
    "not_a_number": "var<private> nan_bits: u32 = 0x7fc00000u;\n"
    "fn not_a_number() -> f32 { return bitcast<f32>(nan_bits); }",
    "float_to_int": "fn float_to_int(a: f32) -> i32 { "
    "let fits = ((bitcast<u32>(a) >> 23u) & 0xffu) < 158u; "
    "return select(i32(-2147483648), i32(select(0.0f, a, fits)), fits); }",
}
"""Functions about floats. What no literal may stand for is kept in a variable, as bits."""

PACKED: Final = {1: (2, 3, 8), 2: (1, 1, 16)}
"""By bytes of an element: the shift from its number to its word's, the mask of its place, bits."""


@dataclass(frozen=True)
class Wgsl(CStyle):
    """WGSL of a device with the feature shader-f16."""

    rounds: int = 0
    """Most rounds of a thread's loops; 0 for no limit."""

    name: ClassVar[str] = "WGSL"
    emulated: ClassVar[frozenset[DType]] = frozenset({dtypes.bfloat16, *dtypes.fp8s})
    lacking: ClassVar[frozenset[DType]] = frozenset({dtypes.float64})

    types: ClassVar[Mapping[DType, str]] = {
        dtypes.index: "i32",
        dtypes.bool: "bool",
        **dict.fromkeys((dtypes.int8, dtypes.int16, dtypes.int32), "i32"),
        **dict.fromkeys((dtypes.uint8, dtypes.uint16, dtypes.uint32), "u32"),
        **dict.fromkeys(dtypes.int64s, "vec2<u32>"),
        dtypes.float16: "f16",
        dtypes.float32: "f32",
    }
    suffixes: ClassVar[Mapping[DType, str]] = {
        **dict.fromkeys((dtypes.index, dtypes.int8, dtypes.int16, dtypes.int32), "i"),
        **dict.fromkeys((dtypes.uint8, dtypes.uint16, dtypes.uint32), "u"),
        dtypes.float16: "h",
        dtypes.float32: "f",
    }
    builtins: ClassVar[Mapping[str, str]] = {"grid": "i32(group[{0}])", "block": "i32(thread[{0}])"}
    barrier: ClassVar[str] = "workgroupBarrier();"
    declaration: ClassVar[str] = "let {name}: {type} = {value};"
    register_declaration: ClassVar[str] = "var {name}: {type};"
    array_declaration: ClassVar[str] = "var {name}: array<{type}, {size}>;"
    shared_declaration: ClassVar[str] = "var<workgroup> {name}: array<{type}, {size}>;"
    loop: ClassVar[str] = "for (var {name}: {type} = {start}; {name} < {end}; {name}++) {{"
    infinity: ClassVar[str] = "infinity()"
    nan: ClassVar[str] = "not_a_number()"
    cast_template: ClassVar[str] = "{type}({0})"
    bitcast_template: ClassVar[str] = "bitcast<{type}>({0})"
    expressions: ClassVar[Mapping[Op, str]] = {
        **CStyle.expressions,
        Op.MAX: "max({0}, {1})",
        Op.MIN: "min({0}, {1})",
        Op.WHERE: "select({2}, {1}, {0})",
    }
    native_ops: ClassVar[frozenset[Op]] = CStyle.native_ops | {Op.MAX, Op.MIN}
    defined: ClassVar[frozenset[Op]] = UNDEFINED_IN_C

    # --- the frame

    def render(self, kernel: LinearKernel) -> str:
        """The source text of a kernel. Raises UnsupportedError where its loops end too early, and
        for arrays of 2**31 elements."""
        refuse_huge(kernel.name, kernel.uops)
        kernel = replace(kernel, uops=with_wide_index(kernel.uops))
        if self.rounds and (rounds := most_rounds(kernel.uops)) > self.rounds:
            raise UnsupportedError(
                f"the loops of {kernel.name} go round up to {rounds:,} times in one thread, and "
                f"this driver ends them after {self.rounds:,}, which makes its result wrong. Give "
                "the kernel's variables smaller ranges, or use a device that is not in software."
            )
        return super().render(kernel)

    def assemble(self, writer: Writer) -> str:
        """Features, bindings, helpers, and the kernel as the one entry point."""
        kernel = writer.kernel
        size = ", ".join(map(str, kernel.launch("block")))
        starts = [
            f"  let start{u.arg} = i32({argument(place)} >> {self.size_shift(u)}u);"
            for place, u in enumerate(kernel.buffers)
        ]
        features = ["enable f16;"] if "f16" in self.text_of_types(writer) else []
        lines = (
            *features,
            *[self.binding(u, writer) for u in kernel.buffers],
            *self.arguments(writer),
            *writer.definitions,
            f"@compute @workgroup_size({size})",
            f"fn {ENTRY}(@builtin(workgroup_id) group: vec3<u32>,",
            "        @builtin(local_invocation_id) thread: vec3<u32>) {",
            *starts,
            *writer.lines,
            "}",
        )
        return "\n".join(lines) + "\n"

    def text_of_types(self, writer: Writer) -> str:
        """Every type that the kernel mentions."""
        kinds = [u.dtype for u in writer.kernel.uops]
        scalars = {k.base if isinstance(k, PointerDType) else k for k in kinds}
        return " ".join(self.types.get(scalar, "") for scalar in scalars)

    def arguments(self, writer: Writer) -> Sequence[str]:
        """The uniform words: where buffers start, the variables, and one that is always 0."""
        rows = place_of_zero(writer) // 4 + 1
        binding = f"@group(0) @binding({ARGUMENTS}) var<uniform>"
        return (f"{binding} arguments: array<vec4<u32>, {rows}>;",)

    def binding(self, u: UOp, writer: Writer) -> str:
        """The declaration of a buffer."""
        kind = self.element_type(u)
        written = u.arg in writer.kernel.written
        access = "read_write" if written else "read"
        memory = "atomic<u32>" if written and is_packed(kind) else self.memory_type(kind)
        return f"@group(0) @binding({u.arg}) var<storage, {access}> data{u.arg}: array<{memory}>;"

    def element_type(self, pointer: UOp) -> DType:
        """The type of the elements behind a pointer."""
        assert isinstance(pointer.dtype, PointerDType)
        return pointer.dtype.base

    def memory_type(self, dtype: DType) -> str:
        """The element type of a buffer in WGSL."""
        return "u32" if is_packed(dtype) else self.types[dtype]

    def size_shift(self, u: UOp) -> int:
        """The shift from bytes to elements."""
        return self.element_type(u).itemsize.bit_length() - 1

    # --- types and constants

    def type_name(self, dtype: DType, writer: Writer) -> str:
        """The name of a type."""
        return self.types[dtype]

    def constant(self, dtype: DType, value: Scalar) -> str:
        """A literal that stands for exactly this value."""
        if dtype.kind == "bool":
            return "true" if value else "false"
        if _wide.is_wide(dtype):
            word = int(value) & (1 << 64) - 1
            return f"vec2<u32>({word & 0xFFFFFFFF}u, {word >> 32}u)"
        return super().constant(dtype, value)

    def float_constant(self, dtype: DType, value: float) -> str:
        """A decimal literal, or the call of what returns an infinity or NaN."""
        text = super().float_constant(dtype, value)
        return f"f16({text})" if dtype is dtypes.float16 and "()" in text else text

    # --- memory

    def write(self, u: UOp, writer: Writer) -> None:
        """Add what one node stands for."""
        if u.op is Op.DEFINE_VAR:
            self.write_variable(u, writer)
            return
        super().write(u, writer)
        if u.op is Op.CONST and "()" in writer[u]:
            define_helper("infinity" if self.infinity in writer[u] else "not_a_number", writer)

    def write_variable(self, u: UOp, writer: Writer) -> None:
        """A variable from its two words of the arguments."""
        kernel = writer.kernel
        place = len(kernel.buffers) + 2 * kernel.variables.index(u)
        low, high = argument(place), argument(place + 1)
        name = writer.texts[u] = writer.unique(f"var_{u.arg[0]}")
        wide = _wide.is_wide(u.dtype)
        kind = writer.type(u.dtype)
        writer.declare(u.dtype, name, f"{kind}({low}, {high})" if wide else f"{kind}({low})")

    def write_memory(self, u: UOp, writer: Writer) -> None:
        """A register, an array of registers, or shared memory, which is declared outside."""
        if u.op is not Op.DEFINE_LOCAL:
            super().write_memory(u, writer)
            return
        assert isinstance(u.dtype, PointerDType)
        name = writer.texts[u] = writer.unique(f"temp{u.arg}")
        kind = writer.type(u.dtype.base)
        template = self.shared_declaration
        writer.define(template.format(name=name, type=kind, size=u.dtype.size))

    def element(self, u: UOp, writer: Writer) -> str:
        """The memory that an INDEX names; of a packed buffer, the number of the element."""
        pointer = pointer_of(u)
        if is_register(pointer):
            return writer[pointer]
        index = writer[u.src[1]]
        if pointer.op is not Op.DEFINE_GLOBAL:
            return f"{writer[pointer]}[{unwrapped(index)}]"
        place = f"start{pointer.arg}" + ("" if index == "0i" else f" + {index}")
        return place if is_packed(self.element_type(pointer)) else f"{writer[pointer]}[{place}]"

    def loaded(self, u: UOp, text: str, writer: Writer) -> str:
        """The value of what was read, from a packed buffer by a function."""
        pointer = pointer_of(u.src[0])
        kind = self.element_type(pointer)
        if pointer.op is not Op.DEFINE_GLOBAL or not is_packed(kind):
            return text
        shift, mask, bits = PACKED[kind.itemsize]
        word = f"data{pointer.arg}[at >> {shift}u]"
        word = f"atomicLoad(&{word})" if pointer.arg in writer.kernel.written else word
        held = f"i32({word})" if kind.kind == "int" else word
        value = f"extractBits({held}, u32(at & {mask}) * {bits}u, {bits}u)"
        value = f"{value} != 0u" if kind.kind == "bool" else value
        name = f"load{pointer.arg}"
        writer.define(f"fn {name}(at: i32) -> {writer.type(kind)} {{ return {value}; }}")
        return f"{name}({text})"

    def write_load(self, u: UOp, writer: Writer) -> None:
        """The value at an INDEX; with a gate, memory is not touched where the gate is false."""
        index = u.src[0]
        text = self.loaded(u, writer[index], writer)
        if len(index.src) < 3:
            writer.value(u, text)
            return
        other = writer[u.src[1]] if len(u.src) > 1 else self.zero(u.dtype, writer)
        name = writer.texts[u] = writer.fresh("val")
        writer.line(f"var {name}: {writer.type(u.dtype)} = {other};")
        writer.line(f"if ({unwrapped(writer[index.src[2]])}) {{ {name} = {text}; }}")

    def write_store(self, u: UOp, writer: Writer) -> None:
        """Write a value at an INDEX, where its gate holds; to a packed buffer by a function."""
        index, value = u.src
        pointer = pointer_of(index)
        kind = self.element_type(pointer)
        if pointer.op is not Op.DEFINE_GLOBAL or not is_packed(kind):
            super().write_store(u, writer)
            return
        shift, mask, bits = PACKED[kind.itemsize]
        name, most = f"store{pointer.arg}", (1 << bits) - 1
        writer.define(
            f"fn {name}(at: i32, value: u32) {{\n"
            f"  let place = u32(at & {mask}) * {bits}u;\n"
            f"  atomicAnd(&data{pointer.arg}[at >> {shift}u], ~({most}u << place));\n"
            f"  atomicOr(&data{pointer.arg}[at >> {shift}u], (value & {most}u) << place);\n"
            "}"
        )
        text = f"{name}({writer[index]}, u32({unwrapped(writer[value])}));"
        if len(index.src) == 3:
            text = f"if ({unwrapped(writer[index.src[2]])}) {{ {text} }}"
        writer.line(text)

    # --- expressions

    def alu(self, u: UOp, operands: Sequence[str], writer: Writer) -> str:
        """Arithmetic, by the type it is on."""
        kind = u.src[-1].dtype
        if _wide.is_wide(kind):
            return _wide.expression(u, list(operands), writer)
        if kind.kind == "float":
            return self.float_arithmetic(u, operands, writer)
        if kind.kind == "bool":
            return self.bool_arithmetic(u, operands, writer)
        return self.narrowed(u, self.integer_arithmetic(u, operands))

    def float_arithmetic(self, u: UOp, operands: Sequence[str], writer: Writer) -> str:
        """Arithmetic and comparisons of floats, those that NaN decides by helpers."""
        helper = FLOAT_HELPERS.get(u.op)
        if helper is None:
            one = self.constant(u.src[-1].dtype, 1)
            if u.op in SUMS and u.dtype is dtypes.float32:
                operands = self.kept_apart(u, operands, writer)
            operands = self.with_unknown_zeros(u, operands, writer)
            return self.template(u).format(*operands, one=one)
        define_helper(helper, writer)
        half = u.src[-1].dtype is dtypes.float16
        values = [f"f32({x})" if half else unwrapped(x) for x in operands]
        text = f"{helper}({', '.join(values)})"
        return f"f16({text})" if half and u.op not in COMPARISON else text

    def kept_apart(self, u: UOp, operands: Sequence[str], writer: Writer) -> Sequence[str]:
        """The operands of a sum that takes away again what was added inside one of them.

        That is how rounding is done, or its error is found, and compilers of WGSL may simplify
        (a + b) - b to a. They do not where a word comes in between that they do not know is 0.
        """
        if not any(takes_back(x, y) for x, y in (u.src, u.src[::-1])):
            return operands
        word = argument(place_of_zero(writer))
        writer.define(
            "fn as_it_is(a: f32) -> f32 { return bitcast<f32>(bitcast<u32>(a) ^ " + word + "); }"
        )
        return [
            f"as_it_is({unwrapped(text)})" if takes_back(x, y) else text
            for x, y, text in zip(u.src, u.src[::-1], operands, strict=True)
        ]

    def with_unknown_zeros(self, u: UOp, operands: Sequence[str], writer: Writer) -> Sequence[str]:
        """The operands of a sum, with a 0.0 that compilers of WGSL do not see.

        They take x + 0.0 for x, and 0.0 - x for -x, which differ in the sign of a zero.
        """
        if u.op not in SUMS | {Op.MULACC} or not any(map(is_zero, u.src)):
            return operands
        zero = f"bitcast<f32>({argument(place_of_zero(writer))})"
        zero = f"f16({zero})" if u.dtype is dtypes.float16 else zero
        return [zero if is_zero(x) else text for x, text in zip(u.src, operands, strict=True)]

    def bool_arithmetic(self, u: UOp, operands: Sequence[str], writer: Writer) -> str:
        """Logic."""
        op = BOOL_ARITHMETIC.get(u.op, u.op)
        special = {Op.XOR: "({0} != {1})", Op.CMPLT: "(!{0} && {1})"}.get(op)
        return (special or self.template(u)).format(*operands)

    def integer_arithmetic(self, u: UOp, operands: Sequence[str]) -> str:
        """Arithmetic on words of 32 bits; WGSL wraps."""
        a, b = operands[0], operands[-1]
        if u.op in (Op.SHL, Op.SHR):
            amount = f"u32({unwrapped(b)})"
            if not is_safe_shift(u):
                amount = f"({amount} & {u.dtype.bits - 1}u)"
            return self.expressions[u.op].format(a, amount)
        if u.op is Op.NEG and u.dtype.kind == "uint":
            return f"(0u - {a})"
        text = self.template(u).format(*operands)
        if u.op is Op.IDIV and not is_safe_division(u):
            zero = self.constant(u.dtype, 0)
            return f"select({unwrapped(text)}, {zero}, {b} == {zero})"
        return text

    def narrowed(self, u: UOp, text: str) -> str:
        """The result of an op cut to its width, if it can have left it."""
        return self.cut(u.dtype, text) if u.op in WIDENING else text

    def cut(self, dtype: DType, text: str) -> str:
        """An i32 or u32 cut to the width of a type, the sign repeated above."""
        if dtype.kind not in ("int", "uint") or dtype.itemsize >= 4:
            return text
        return f"extractBits({unwrapped(text)}, 0u, {dtype.bits}u)"

    # --- conversions

    def cast(self, u: UOp, writer: Writer) -> str:
        """A value converted."""
        source, target, text = u.src[0].dtype, u.dtype, unwrapped(writer[u.src[0]])
        if target.kind == "bool":
            return self.is_true(source, text, writer)
        if _wide.is_wide(target):
            return self.widened(source, target, text, writer)
        if source.kind == "float" and target.kind != "float":
            return self.truncated(source, target, text, writer)
        if _wide.is_wide(source):
            if target.kind == "float":
                name = "i64_to_f32" if source is dtypes.int64 else "u64_to_f32"
                text = _wide.call(f"{name}({text})", writer)
                return f"f16({text})" if target is dtypes.float16 else text
            text = f"({text}).x"
        return self.cut(target, f"{writer.type(target)}({text})")

    def is_true(self, source: DType, text: str, writer: Writer) -> str:
        """Condition, as code, that a number is not 0; false for NaN."""
        if source.kind == "float":
            define_helper("differ", writer)
            return f"differ(f32({text}), 0.0f)"
        if _wide.is_wide(source):
            return f"any({text} != vec2<u32>(0u))"
        return f"({text} != {self.constant(source, 0)})"

    def widened(self, source: DType, target: DType, text: str, writer: Writer) -> str:
        """A number as two words."""
        if source.kind == "float":
            name = "f32_to_i64" if target is dtypes.int64 else "f32_to_u64"
            return _wide.call(f"{name}(f32({text}))", writer)
        if _wide.is_wide(source):
            return f"({text})"
        if source.kind in ("int", "index"):
            return f"vec2<u32>(u32({text}), u32(({text}) >> 31u))"
        return f"vec2<u32>(u32({text}), 0u)"

    def truncated(self, source: DType, target: DType, text: str, writer: Writer) -> str:
        """A float as an integer of at most 32 bits."""
        if target is dtypes.uint32:
            return _wide.call(f"f32_to_i64(f32({text})).x", writer)
        define_helper("float_to_int", writer)
        value = f"float_to_int(f32({text}))"
        return self.cut(target, f"u32({value})" if target.kind == "uint" else value)

    def bitcast(self, u: UOp, writer: Writer) -> str:
        """The same bits as another type."""
        source, target, text = u.src[0].dtype, u.dtype, unwrapped(writer[u.src[0]])
        if _wide.is_wide(source):
            return f"({text})"
        if source is dtypes.float16:
            word = f"bitcast<u32>(vec2<f16>({text}, 0.0h))"
            return self.cut(target, f"{writer.type(target)}({word})")
        if target is dtypes.float16:
            return f"bitcast<vec2<f16>>(u32({text}) & 0xffffu).x"
        return self.cut(target, super().bitcast(u, writer))


@dataclass(frozen=True)
class WgslWithoutHalves(Wgsl):
    """WGSL of a device without shader-f16: halves are computed in float32."""

    emulated: ClassVar[frozenset[DType]] = Wgsl.emulated | {dtypes.float16}


FLOAT_HELPERS: Final = {
    Op.MAX: "maximum",
    Op.MIN: "minimum",
    Op.CMPNE: "differ",
    Op.CMPEQ: "same",
}
"""The function that does an op on floats as NaN demands."""
SUMS: Final = frozenset({Op.ADD, Op.SUB})
WIDENING: Final = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.SHL, Op.IDIV, Op.MULACC})
"""Integer ops whose result may not fit a type that is held in a wider one."""


def define_helper(name: str, writer: Writer) -> None:
    """Put a function about floats before the kernel, after what it calls."""
    if "bits_are_nan" in HELPERS[name]:
        writer.define(HELPERS["bits_are_nan"])
    writer.define(HELPERS[name])


def is_packed(dtype: DType) -> bool:
    """True if several elements of a type share a word of memory."""
    return dtype.itemsize in PACKED and dtype is not dtypes.float16


def argument(place: int) -> str:
    """A word of the arguments."""
    return f"arguments[{place // 4}][{place % 4}]"


def place_of_zero(writer: Writer) -> int:
    """Index of the word of the arguments that is always 0."""
    return len(writer.kernel.buffers) + 2 * len(writer.kernel.variables)


def takes_back(inner: UOp, outer: UOp) -> bool:
    """True if a sum of both may take away something that was added in `inner`."""
    return inner.op in SUMS | {Op.MULACC} and any(alike(outer, x) for x in inner.src)


def is_zero(u: UOp) -> bool:
    """True if a value is the constant 0.0, not -0.0."""
    return u.op is Op.CONST and u.arg == 0 and math.copysign(1.0, u.arg) > 0


def alike(a: UOp, b: UOp) -> bool:
    """True if two values are the same but for the sign."""
    if a.op is Op.CONST and b.op is Op.CONST:
        return bool(abs(a.arg) == abs(b.arg))
    return a is b
