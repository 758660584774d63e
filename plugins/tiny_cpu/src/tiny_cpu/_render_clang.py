"""C for clang 15 and newer: freestanding, without headers, vectors by `ext_vector_type`.

See `tiny_cpu.render` for the ABI and for what is defined beyond C.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final

from tiny_cpu import _clang_helpers as helpers
from tiny_cpu._subnormals import FLUSHING, constant_of
from tinycore.config import settings
from tinycore.dtype import DType, dtypes
from tinycore.render import STREAM, pointer_of
from tinycore.render.base import two_at_most
from tinycore.render.cstyle import CStyle
from tinycore.render.facts import is_parallel, is_safe_division
from tinycore.render.guards import UNDEFINED_IN_C
from tinycore.render.writer import Writer, unwrapped
from tinycore.uop.node import UOp
from tinycore.uop.op import COMPARISON, SHIFTS, Op

PLAIN_C: Final = {
    dtypes.index: "long long",
    dtypes.int8: "signed char",
    dtypes.uint8: "unsigned char",
    dtypes.int16: "short",
    dtypes.uint16: "unsigned short",
    dtypes.int32: "int",
    dtypes.uint32: "unsigned int",
    dtypes.int64: "long long",
    dtypes.uint64: "unsigned long long",
}
"""The C types behind the names of <stdint.h>."""


FLOAT_MODE_IN_C: Final = """\
#if defined(__x86_64__)
#define FLOATS_OF unsigned
#define GET_FLOATS __builtin_ia32_stmxcsr()
#define SET_FLOATS(mode) __builtin_ia32_ldmxcsr(mode)
#define FLUSH 0x8040
#else
#define FLOATS_OF unsigned long
#define GET_FLOATS ({ unsigned long now; __asm__ volatile("mrs %0, fpcr" : "=r"(now)); now; })
#define SET_FLOATS(mode) __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory")
#define FLUSH (1ul << 24)
#endif"""
"""The control register of floats: bits FTZ and DAZ of MXCSR (Intel SDM 10.2.3), FZ of FPCR."""
ENTRY_PARAMETERS: Final = "void *const *buffers, const int64_t *values, int64_t begin, int64_t end"


class Clang(CStyle):
    """C as clang compiles it for a CPU of any width."""

    name: ClassVar[str] = "CLANG"
    emulated: ClassVar[frozenset[DType]] = frozenset({dtypes.bfloat16, *dtypes.fp8s})

    types: ClassVar[Mapping[DType, str]] = {
        **{dtype: f"{dtype.name}_t" for dtype in PLAIN_C},
        dtypes.index: "int64_t",
        dtypes.bool: "_Bool",
        dtypes.float16: "_Float16",
        dtypes.float32: "float",
        dtypes.float64: "double",
    }
    suffixes: ClassVar[Mapping[DType, str]] = {
        dtypes.uint32: "u",
        dtypes.int64: "ll",
        dtypes.uint64: "ull",
        dtypes.float16: "f16",
        dtypes.float32: "f",
    }
    infinity: ClassVar[str] = "__builtin_inff()"
    nan: ClassVar[str] = helpers.NAN
    vector: ClassVar[str] = "({type}){{{lanes}}}"
    vector_load: ClassVar[str] = "*({type} *)({pointer})"
    vector_store: ClassVar[str] = "*({type} *)({pointer}) = {value};"
    array_declaration: ClassVar[str] = "_Alignas(64) {type} {name}[{size}];"
    expressions: ClassVar[Mapping[Op, str]] = {
        **CStyle.expressions,
        Op.TRUNC: "__builtin_elementwise_trunc({0})",
    }
    native_ops: ClassVar[frozenset[Op]] = CStyle.native_ops | {Op.MAX, Op.MIN}
    native_types: ClassVar[Mapping[Op, frozenset[DType]]] = {
        Op.SQRT: frozenset({dtypes.float32, dtypes.float64})  # halves would be taken one by one
    }
    defined: ClassVar[frozenset[Op]] = UNDEFINED_IN_C - SHIFTS

    # --- the frame: an inner function whose `restrict` parameters tell clang that buffers differ

    def prelude(self) -> Sequence[str]:
        """Products may be fused into sums, everywhere."""
        return ("#pragma clang fp contract(fast)",)

    def assemble(self, writer: Writer) -> str:
        """The body as a function of typed parameters, and the entry that unpacks them."""
        kernel, body = writer.kernel, f"{writer.kernel.name}_body"
        parameters = self.parameters(writer)
        writer.type(dtypes.index)
        arguments = [f"buffers[{u.arg}]" for u in kernel.buffers]
        arguments += [f"values[{i}]" for i in range(len(kernel.variables))]
        if any(is_parallel(u) for u in kernel.uops):
            parameters += ["int64_t begin", "int64_t end"]
            arguments += ["begin", "end"]
        fence = ("  __builtin_ia32_sfence();",) if kernel.streams else ()
        call, flushes = f"  {body}({', '.join(arguments)});", settings.FLUSH_SUBNORMALS
        before = ("  FLOATS_OF mode = GET_FLOATS;", "  SET_FLOATS(mode | FLUSH);")
        lines = (
            *self.prelude(),
            *((FLUSHING, FLOAT_MODE_IN_C) if flushes else ()),
            *writer.definitions,
            *(("__attribute__((noinline))",) if flushes else ()),  # or floats could leave the mode
            f"static void {body}({', '.join(parameters) or 'void'}) {{",
            *writer.lines,
            "}",
            f"void {kernel.name}({ENTRY_PARAMETERS}) {{",
            *((*before, call, "  SET_FLOATS(mode);") if flushes else (call,)),
            *fence,
            "}",
        )
        return "\n".join(lines) + "\n"

    def extent(self, u: UOp, writer: Writer) -> tuple[str, str]:
        """A PARALLEL range covers what this call was given."""
        return ("begin", "end") if is_parallel(u) else super().extent(u, writer)

    # --- types, constants and memory

    def float_constant(self, dtype: DType, value: float) -> str:
        """The literal of a constant as the kernel computes with it."""
        return super().float_constant(dtype, float(constant_of(dtype, value)))

    def type_name(self, dtype: DType, writer: Writer) -> str:
        """The name of a type, defined where C has none."""
        scalar = dtype.scalar()
        name = self.types[scalar]
        if scalar in PLAIN_C:
            writer.define(f"typedef {PLAIN_C[scalar]} {name};")
        if dtype.count == 1:
            return name
        # Lanes of bool are bytes of 0 or 1, in registers too: clang packs vectors of _Bool to bits.
        element = self.storage_type(scalar, writer)
        vector = helpers.suffix(dtype)
        attributes = f"ext_vector_type({dtype.count}), aligned({dtype.itemsize})"
        writer.define(f"typedef {element} {vector} __attribute__(({attributes}));")
        return vector

    def storage_type(self, dtype: DType, writer: Writer) -> str:
        """The name of a type in memory, where a bool is a byte."""
        return self.type_name(dtypes.uint8 if dtype is dtypes.bool else dtype, writer)

    def loaded(self, u: UOp, text: str, writer: Writer) -> str:
        """The value of what was read: any byte but 0 is true."""
        if u.dtype.kind != "bool" or pointer_of(u.src[0]).op is Op.DEFINE_REG:
            return text
        return self.as_bool(u.dtype, f"{text} != 0", writer)

    def load_template(self, u: UOp, writer: Writer) -> str:
        """A number of bytes says how far ahead to fetch."""
        if u.arg is None:
            return self.vector_load
        return f"{helpers.fetching(u.dtype, writer)}({{pointer}}, {u.arg})"

    def store_template(self, u: UOp, writer: Writer) -> str:
        """A STREAM goes past the caches of an x86-64."""
        if u.arg != STREAM:
            return self.vector_store
        return f"{helpers.streaming(u.src[1].dtype, writer)}({{pointer}}, {{value}});"

    # --- expressions

    def as_bool(self, dtype: DType, test: str, writer: Writer) -> str:
        """A comparison as bool: those of vectors yield lanes of -1 and 0."""
        if dtype.count == 1:
            return f"({test})"
        return f"(__builtin_convertvector({test}, {writer.type(dtype)}) & 1)"

    def vectorize(self, u: UOp, writer: Writer) -> str:
        """Lanes as a vector. A bool is repeated as a number, since clang would as -1."""
        if u.dtype.kind != "bool" or len(set(u.src)) > 1:
            return super().vectorize(u, writer)
        number = f"({self.storage_type(dtypes.bool, writer)}){writer[u.src[0]]}"
        return self.splat.format(number, type=writer.type(u.dtype))

    def alu(self, u: UOp, operands: Sequence[str], writer: Writer) -> str:
        """Arithmetic; what C lacks or leaves undefined goes through a helper."""
        if (helper := self.helper(u, writer)) is not None:
            return f"{helper}({', '.join(map(unwrapped, operands))})"
        if u.dtype.count == 1:
            return super().alu(u, operands, writer)
        if u.op in COMPARISON:
            return self.as_bool(u.dtype, unwrapped(super().alu(u, operands, writer)), writer)
        if u.op is Op.WHERE:
            lanes = writer.type(helpers.same_width(u.dtype, "int"))
            mask = f"(__builtin_convertvector({unwrapped(operands[0])}, {lanes}) != 0)"
            operands = [mask, *operands[1:]]
        return super().alu(u, operands, writer)

    def helper(self, u: UOp, writer: Writer) -> str | None:
        """The function that computes a node, None where an operator does."""
        if u.op is Op.SQRT:
            return helpers.square_root(u.dtype, writer)
        if u.op in (Op.MAX, Op.MIN) and u.dtype.kind != "bool":
            return helpers.extreme(u.op, u.dtype, writer)
        if u.op in (Op.IDIV, Op.MOD) and not is_safe_division(u):
            return helpers.division(u.op, u.dtype, writer)
        return None

    def cast(self, u: UOp, writer: Writer) -> str:
        """A value converted; a float to an integer by a helper that knows what does not fit."""
        source, text = u.src[0].dtype, writer[u.src[0]]
        if u.dtype.kind == "bool":
            return self.as_bool(u.dtype, f"{text} != 0", writer)
        if source.kind == "float" and u.dtype.kind != "float":
            if source.scalar() is dtypes.float16:
                source = dtypes.float32.vec(source.count)
                text = self.converted(source, text, writer)
            return f"{helpers.truncation(u.dtype, source, writer)}({unwrapped(text)})"
        if u.dtype.scalar() is dtypes.float16 and source.scalar() is dtypes.float32:
            return f"{helpers.narrowing(u.dtype, source, writer)}({unwrapped(text)})"
        return self.converted(u.dtype, text, writer)

    def converted(self, dtype: DType, text: str, writer: Writer) -> str:
        """A conversion that C defines."""
        if dtype.count == 1:
            return f"({writer.type(dtype)}){text}"
        return f"__builtin_convertvector({unwrapped(text)}, {writer.type(dtype)})"

    def bitcast(self, u: UOp, writer: Writer) -> str:
        """The same bits: a plain cast between vectors and between integers, else by a helper."""
        source = u.src[0]
        if u.dtype.count > 1 or "float" not in (u.dtype.kind, source.dtype.kind):
            return f"({writer.type(u.dtype)}){writer[source]}"
        return f"{helpers.bits_of(u.dtype, source.dtype, writer)}({unwrapped(writer[source])})"

    def dot(self, u: UOp, writer: Writer) -> str:
        """The instruction of an x86-64 for vectors of int16."""
        function = f"__builtin_ia32_pmaddwd{u.src[0].dtype.size_bytes * 8}"
        lanes = f"__attribute__((__vector_size__({u.src[0].dtype.size_bytes})))"
        operands = ", ".join(f"(short {lanes}){writer[s]}" for s in u.src)
        return f"({writer.type(u.dtype)}){function}({operands})"

    def extract(self, u: UOp, writer: Writer) -> str:
        """One lane by its number, several as a shuffle."""
        if u.dtype.count == 1:
            return super().extract(u, writer)

        def join(first: str, second: str, lanes: int) -> str:
            return self.shuffled(first, second, range(lanes))

        parts, _ = two_at_most([writer[s] for s in u.src], u.src[0].dtype.count, join)
        return self.shuffled(parts[0], parts[-1], u.arg)

    def shuffled(self, first: str, second: str, lanes: Iterable[int]) -> str:
        """Lanes of two vectors, by numbers."""
        return f"__builtin_shufflevector({first}, {second}, {', '.join(map(str, lanes))})"


class ClangBaseline(Clang):
    """C for a CPU that can neither convert halves nor round at once (x86-64 before v3)."""

    native_ops: ClassVar[frozenset[Op]] = Clang.native_ops - {Op.TRUNC}
    emulated: ClassVar[frozenset[DType]] = Clang.emulated | {dtypes.float16}
