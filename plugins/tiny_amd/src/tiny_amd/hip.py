"""HIP, as clang compiles it for a card without its headers: from tables on the C family.

A kernel takes the addresses of its buffers by slot, then the variables by name as `long long`, as
that of LLVM IR does (`render.py`):

    extern "C" __attribute__((global, ...)) void NAME(float *data0, ..., long long n)

Vectors are only moved: `vec<float, 4>` is a struct of aligned lanes, which one instruction loads or
stores. bfloat16 and the fp8s are integers in memory and float32 between; a bool is a byte. Matrix
instructions are clang's builtins (clang, BuiltinsAMDGPU.def), each within a function.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from tiny_amd.matrix import FAMILIES, Instruction
from tiny_amd.render import SWIZZLED_LANES, WMMA_LANES, is_added_to, swizzle_offset
from tinycore.dtype import DType, dtypes
from tinycore.render.base import pointer_of
from tinycore.render.cstyle import CStyle, MatrixCall
from tinycore.render.facts import is_safe_shift
from tinycore.render.literals import as_stored
from tinycore.render.writer import Writer, unwrapped
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["AmdHip"]

RESERVED: Final = frozenset(
    "alignas alignof and and_eq as asm auto bitand bitor bool break case catch char class compl "
    "const constexpr const_cast continue decltype default delete do double dynamic_cast else enum "
    "explicit export extern false float for friend goto if inline int lane load long mutable "
    "narrow namespace new noexcept not not_eq nullptr operator or or_eq private protected "
    "public register reinterpret_cast return root shared short signed sizeof static "
    "static_assert static_cast store struct switch template this thread_local throw true "
    "try typedef typeid typename union unsigned using vec virtual void volatile wchar_t "
    "while xor xor_eq FUNCTION".split()
)
"""Words of C++ and of what stands before a kernel, which nothing else may be called."""
PRELUDE: Final = """\
#pragma clang fp contract(fast)
#define FUNCTION __attribute__((device, always_inline)) static inline
template <class T, int N> struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) vec { T v[N]; };
template <class T> FUNCTION T load(const void *p) { return *(const T *)p; }
template <class T> FUNCTION void store(void *p, T x) { *(T *)p = x; }
template <class T, class S> FUNCTION T as(S x) { return __builtin_bit_cast(T, x); }"""
ROOTS: Final = """\
FUNCTION float root(float x) { return __builtin_sqrtf(x); }
FUNCTION double root(double x) { return __builtin_sqrt(x); }
FUNCTION _Float16 root(_Float16 x) { return (_Float16)__builtin_sqrtf((float)x); }"""
NARROW: Final = """\
FUNCTION float narrow(double x) {
#pragma clang fp contract(off)
  return (float)x;
}"""
"""A double as float, which stays a step of its own: where contraction is allowed, newer clangs
round a double that becomes half by float once, from the double."""
LANE: Final = """\
FUNCTION int lane() {
  return __builtin_amdgcn_mbcnt_hi(-1, __builtin_amdgcn_mbcnt_lo(-1, 0));
}"""
BARRIER: Final = (
    '__builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); __builtin_amdgcn_s_barrier(); '
    '__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");'
)
HELD: Final = """\
template <class C> FUNCTION C held(C c) {
  asm volatile("" : "+v"(c));
  return c;
}"""
"""An empty instruction that every lane executes: see `AmdLlvm.matrix_sum`."""
ELEMENTS: Final = {"half": "_Float16", "bfloat": "__bf16", "i16": "short", "i32": "int"}
"""Elements of LLVM's vectors, as clang names them."""
SCALARS: Final = {"float": "float", "i64": "long"}


def clang_type(kind: str) -> str:
    """A type of LLVM, as clang writes it: `<8 x half>` as a vector."""
    if kind in SCALARS:
        return SCALARS[kind]
    count, _, element = kind.strip("<>").split()
    return f"{ELEMENTS[element]} __attribute__((ext_vector_type({count})))"


def builtin(instruction: Instruction) -> str:
    """Clang's name of a matrix instruction; that of WMMA says whose it is, and not its types."""
    words = instruction.intrinsic.name.split(".")
    if instruction.unit.threads == WMMA_LANES:
        family = ["gfx12"] if "rdna4" in instruction.unit.name else []
        words = [*words[:-2], "w32", *family]
    return f"__builtin_{'_'.join(words)}"


def matrix_call(instruction: Instruction) -> MatrixCall:
    """A function of fragments, which passes their bits to a builtin."""
    unit, intrinsic = instruction.unit, instruction.intrinsic
    sums = "int" if unit.out.kind == "int" else "float"
    passed = {"a": "as<X>(a)", "b": "as<X>(b)", "c": "as<S>(c)"}
    arguments = (passed.get(name, name.split()[-1]) for name in intrinsic.arguments)
    return MatrixCall(
        f"{unit.name}({{0}}, {{1}}, {{2}})",
        f"template <class A, class C> FUNCTION C {unit.name}(A a, A b, C c) {{\n"
        f"  typedef {clang_type(intrinsic.operand)} X;\n"
        f"  typedef {sums} S __attribute__((ext_vector_type({unit.fragment('out').count})));\n"
        f"  return as<C>({builtin(instruction)}({', '.join(arguments)}));\n"
        "}",
    )


@dataclass(frozen=True)
class AmdHip(CStyle):
    """HIP for amdgcn."""

    name: ClassVar[str] = "HIP"
    reserved: ClassVar[frozenset[str]] = RESERVED
    emulated: ClassVar[frozenset[DType]] = frozenset({dtypes.bfloat16, *dtypes.fp8s})
    approximate: ClassVar[frozenset[Op]] = frozenset({Op.EXP2})
    vector_ops: ClassVar[bool] = False
    types: ClassVar[Mapping[DType, str]] = {
        **CStyle.types,
        dtypes.int8: "signed char",
        dtypes.int64: "long long",
        dtypes.uint64: "unsigned long long",
        dtypes.float16: "_Float16",
    }
    wide_index: ClassVar[str] = "long long"
    suffixes: ClassVar[Mapping[DType, str]] = {
        dtypes.uint32: "u",
        dtypes.int64: "ll",
        dtypes.uint64: "ull",
        dtypes.float16: "f16",
        dtypes.float32: "f",
    }
    expressions: ClassVar[Mapping[Op, str]] = {
        **CStyle.expressions,
        Op.SQRT: "root({0})",
        Op.TRUNC: "__builtin_elementwise_trunc({0})",
        Op.EXP2: "__builtin_amdgcn_exp2f({0})",
    }
    spaces: ClassVar[Mapping[str, str]] = {
        "global": "",
        "local": "__attribute__((shared, aligned(16))) ",
        "register": "__attribute__((aligned(16))) ",
    }
    restrict: ClassVar[str] = "__restrict__ "
    builtins: ClassVar[Mapping[str, str]] = {
        "grid": "__builtin_amdgcn_workgroup_id_{xyz}()",
        "block": "__builtin_amdgcn_workitem_id_{xyz}()",
    }
    barrier: ClassVar[str] = BARRIER
    function: ClassVar[str] = "FUNCTION {type} {name}({parameters}) {{ {body} }}"
    vector_type: ClassVar[str] = "vec<{scalar}, {count}>"
    vector_load: ClassVar[str] = "load<{type}>({pointer})"
    vector_store: ClassVar[str] = "store<{type}>({pointer}, {value});"
    bitcast_template: ClassVar[str] = "as<{type}>({0})"
    matrix: ClassVar[Mapping[str, MatrixCall]] = {
        found.unit.name: matrix_call(found) for family in FAMILIES for found in family
    }

    # --- the frame

    def prelude(self) -> Sequence[str]:
        """Vectors, and bits of one type as another."""
        return (PRELUDE,)

    def signature(self, writer: Writer) -> str:
        """The head of the kernel, with the size of its groups."""
        x, y, z = writer.kernel.launch("block")
        threads, parameters = x * y * z, ", ".join(self.parameters(writer))
        attributes = f"global, amdgpu_flat_work_group_size({threads}, {threads})"
        return f'extern "C" __attribute__(({attributes})) void {writer.kernel.name}({parameters})'

    def parameters(self, writer: Writer) -> list[str]:
        """Every slot of the kernel, also one that is not read; then the variables."""
        by_slot = {u.arg: u for u in writer.kernel.buffers}
        slots = range(max(by_slot, default=-1) + 1)
        buffers = [
            f"{self.pointer_type(by_slot[i], writer)}{self.restrict}{writer[by_slot[i]]}"
            if i in by_slot
            else f"void *unused{i}"
            for i in slots
        ]
        return buffers + [f"long long {writer[u]}_" for u in writer.kernel.variables]

    def assemble(self, writer: Writer) -> str:
        """Definitions, signature, variables as they are used, and the body."""
        head = [
            f"  const {writer.type(u.dtype)} {writer[u]} = {writer[u]}_;"
            for u in writer.kernel.variables
        ]
        lines = (
            *self.prelude(),
            *writer.definitions,
            f"{self.signature(writer)} {{",
            *head,
            *writer.lines,
            "}",
        )
        return "\n".join(lines) + "\n"

    # --- types and constants

    def type_name(self, dtype: DType, writer: Writer) -> str:
        """The name of a type; lanes of bool are bytes."""
        if dtype.count > 1 and dtype.scalar() is dtypes.bool:
            dtype = dtypes.uint8.vec(dtype.count)
        return super().type_name(dtype, writer)

    def storage_type(self, dtype: DType, writer: Writer) -> str:
        """The name of a type in memory, where a bool is a byte."""
        kind = dtypes.uint8.vec(dtype.count) if dtype.kind == "bool" else dtype
        return self.type_name(kind, writer)

    def float_constant(self, dtype: DType, value: float) -> str:
        """The shortest literal; bits for what has no literal."""
        rounded = as_stored(dtype, value)
        if rounded - rounded == 0:
            return super().float_constant(dtype, value)
        if dtype is dtypes.float16:
            return f"as<_Float16>((unsigned short)0x{struct.pack('>e', rounded).hex()})"
        if dtype is dtypes.float64:
            return f"as<double>(0x{struct.pack('>d', rounded).hex()}ull)"
        return f"as<float>(0x{struct.pack('>f', rounded).hex()}u)"

    # --- memory

    def loaded(self, u: UOp, text: str, writer: Writer) -> str:
        """The value of what was read: any byte but 0 is true.

        What is read behind a gate is made a value, or C++ would choose between two places.
        """
        if u.dtype.count > 1 or pointer_of(u.src[0]).op is Op.DEFINE_REG:
            return text
        if u.dtype.kind == "bool":
            return f"({text} != 0)"
        return f"({writer.type(u.dtype)}){text}" if len(u.src[0].src) == 3 else text

    def zero(self, dtype: DType, writer: Writer) -> str:
        """Zero in every lane."""
        if dtype.count == 1:
            return self.constant(dtype, 0)
        return f"{writer.type(dtype)}{{}}"

    # --- expressions

    def exchanged(self, u: UOp, writer: Writer) -> str:
        """The word of another lane: ds_swizzle within 32 lanes, ds_bpermute beyond them."""
        word = f"as<int>({unwrapped(writer[u.src[0]])})"
        if u.arg < SWIZZLED_LANES:
            call = f"__builtin_amdgcn_ds_swizzle({word}, {swizzle_offset(u.arg)})"
        else:
            writer.define(LANE)
            call = f"__builtin_amdgcn_ds_bpermute((lane() ^ {u.arg}) << 2, {word})"
        return f"as<{writer.type(u.dtype)}>({call})"

    def cast(self, u: UOp, writer: Writer) -> str:
        """A value converted; from double to float by a function that nothing is contracted with."""
        if u.dtype is dtypes.float32 and u.src[0].dtype is dtypes.float64:
            writer.define(NARROW)
            return f"narrow({unwrapped(writer[u.src[0]])})"
        return super().cast(u, writer)

    def matrix_sum(self, u: UOp, writer: Writer) -> str:
        """A sum by a matrix instruction, which every lane executes: see `AmdLlvm.matrix_sum`."""
        text = super().matrix_sum(u, writer)
        if u.arg.threads != WMMA_LANES or is_added_to(u, writer.kernel):
            return text
        writer.define(HELD)
        vector = f"{'int' if u.dtype.kind == 'int' else 'float'}"
        kind = f"{vector} __attribute__((ext_vector_type({u.dtype.count})))"
        return f"as<{writer.type(u.dtype)}>(held(as<{kind}>({text})))"

    def alu(self, u: UOp, operands: Sequence[str], writer: Writer) -> str:
        """Arithmetic; a shift takes its amount modulo the width."""
        if u.op is Op.SQRT:
            writer.define(ROOTS)
        if u.op in (Op.SHL, Op.SHR) and not is_safe_shift(u):
            operands = [operands[0], f"({operands[1]} & {u.dtype.bits - 1})"]
        return super().alu(u, operands, writer)

    def vectorize(self, u: UOp, writer: Writer) -> str:
        """Lanes as a vector; narrow integers are made so, which C++ does not by itself."""
        scalar = u.dtype.scalar()
        narrow = scalar.kind != "float" and scalar.itemsize < 4
        kind = self.storage_type(scalar, writer)
        lanes = [f"({kind}){writer[s]}" if narrow else unwrapped(writer[s]) for s in u.src]
        return f"{writer.type(u.dtype)}{{{{{', '.join(lanes)}}}}}"

    def extract(self, u: UOp, writer: Writer) -> str:
        """One lane of a vector."""
        (lane,) = u.arg
        vector = u.src[lane // u.src[0].dtype.count]
        text = f"{writer[vector]}.v[{lane % vector.dtype.count}]"
        return f"({text} != 0)" if u.dtype.kind == "bool" else text
