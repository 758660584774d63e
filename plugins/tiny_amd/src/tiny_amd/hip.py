"""HIP, as clang compiles it for a card without its headers: from tables on the family of C++.

A kernel takes the addresses of its buffers by slot, then the variables by name as `long long`, as
that of LLVM IR does (`render.py`):

    extern "C" __attribute__((global, ...)) void NAME(float *data0, ..., long long n)

Vectors are only moved: `vec<float, 4>` is a struct of aligned lanes, which one instruction loads or
stores. bfloat16 and the fp8s are integers in memory and float32 between; a bool is a byte. Matrix
instructions are clang's builtins (clang, BuiltinsAMDGPU.def), each within a function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from tiny_amd.matrix import FAMILIES, Instruction
from tiny_amd.render import SWIZZLED_LANES, WMMA_LANES, is_added_to, swizzle_offset
from tinycore.dtype import DType, dtypes
from tinycore.render.cstyle import MatrixCall
from tinycore.render.cxx import VECTORS, Cxx
from tinycore.render.writer import Writer, unwrapped
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["AmdHip"]

RESERVED: Final = Cxx.reserved | {"lane", "narrow", "root", "shared"}
"""Words that no variable may be called, those of helpers among them."""
PRELUDE: Final = f"""\
#pragma clang fp contract(fast)
#define FUNCTION __attribute__((device, always_inline)) static inline
{VECTORS}
template <class T, class S> FUNCTION T as(S x) {{ return __builtin_bit_cast(T, x); }}"""
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
class AmdHip(Cxx):
    """HIP for amdgcn."""

    name: ClassVar[str] = "HIP"
    reserved: ClassVar[frozenset[str]] = RESERVED
    emulated: ClassVar[frozenset[DType]] = frozenset({dtypes.bfloat16, *dtypes.fp8s})
    approximate: ClassVar[frozenset[Op]] = frozenset({Op.EXP2})
    types: ClassVar[Mapping[DType, str]] = {**Cxx.types, dtypes.float16: "_Float16"}
    suffixes: ClassVar[Mapping[DType, str]] = {**Cxx.suffixes, dtypes.float16: "f16"}
    expressions: ClassVar[Mapping[Op, str]] = {
        **Cxx.expressions,
        Op.SQRT: "root({0})",
        Op.TRUNC: "__builtin_elementwise_trunc({0})",
        Op.EXP2: "__builtin_amdgcn_exp2f({0})",
    }
    spaces: ClassVar[Mapping[str, str]] = {
        "global": "",
        "local": "__attribute__((shared, aligned(16))) ",
        "register": "__attribute__((aligned(16))) ",
    }
    builtins: ClassVar[Mapping[str, str]] = {
        "grid": "__builtin_amdgcn_workgroup_id_{xyz}()",
        "block": "__builtin_amdgcn_workitem_id_{xyz}()",
    }
    barrier: ClassVar[str] = BARRIER
    function: ClassVar[str] = "FUNCTION {type} {name}({parameters}) {{ {body} }}"
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
        """Arithmetic; roots by functions for each type."""
        if u.op is Op.SQRT:
            writer.define(ROOTS)
        return super().alu(u, operands, writer)
