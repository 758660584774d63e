"""Renderers of C++ for graphics cards, such as CUDA C and HIP: a dialect of C by templates.

Floor 2. A kernel takes the addresses of its buffers by slot, then the variables by name as
`long long`. Vectors are only moved: `vec<float, 4>` is a struct of aligned lanes, which one
instruction loads or stores. A bool is a byte in memory. Dialects define the macro FUNCTION, the
words before a function of the device, and the template `as<T>(x)`, the bits of x as a T.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import ClassVar, Final

from tinycore.dtype import DType, dtypes
from tinycore.render.base import pointer_of
from tinycore.render.cstyle import CStyle
from tinycore.render.literals import as_stored
from tinycore.render.writer import Writer, unwrapped
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

CXX_WORDS: Final = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const "
    "constexpr const_cast continue decltype default delete do double dynamic_cast else enum "
    "explicit export extern false float for friend goto if inline int long mutable namespace new "
    "noexcept not not_eq nullptr operator or or_eq private protected public register "
    "reinterpret_cast return short signed sizeof static static_assert static_cast struct switch "
    "template this thread_local throw true try typedef typeid typename union unsigned using "
    "virtual void volatile wchar_t while xor xor_eq".split()
)
"""Words of the language, which no variable may be called."""
VECTORS: Final = """\
template <class T, int N> struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) vec { T v[N]; };
template <class T> FUNCTION T load(const void *p) { return *(const T *)p; }
template <class T> FUNCTION void store(void *p, T x) { *(T *)p = x; }"""
"""Definitions of vectors, for the prelude of a dialect."""
FLOAT_WORDS: Final = {
    dtypes.float16: ("e", "(unsigned short)0x{}"),
    dtypes.float32: ("f", "0x{}u"),
    dtypes.float64: ("d", "0x{}ull"),
}
"""For each type of floats, the letter of `struct`, and an integer that has its bits."""


class Cxx(CStyle):
    """C++ whose vectors are structs of lanes."""

    reserved: ClassVar[frozenset[str]] = CXX_WORDS | {"as", "load", "store", "vec", "FUNCTION"}
    vector_ops: ClassVar[bool] = False
    stores_bytes: ClassVar[bool] = True
    types: ClassVar[Mapping[DType, str]] = {
        **CStyle.types,
        dtypes.int8: "signed char",
        dtypes.int64: "long long",
        dtypes.uint64: "unsigned long long",
    }
    wide_index: ClassVar[str] = "long long"
    suffixes: ClassVar[Mapping[DType, str]] = {
        dtypes.uint32: "u",
        dtypes.int64: "ll",
        dtypes.uint64: "ull",
        dtypes.float32: "f",
    }
    restrict: ClassVar[str] = "__restrict__ "
    vector_type: ClassVar[str] = "vec<{scalar}, {count}>"
    vector_load: ClassVar[str] = "load<{type}>({pointer})"
    vector_store: ClassVar[str] = "store<{type}>({pointer}, {value});"
    bitcast_template: ClassVar[str] = "as<{type}>({0})"

    # --- the frame

    def parameters(self, writer: Writer) -> list[str]:
        """Every slot of the kernel, also one that is not read; then the variables."""
        values = [f"long long {writer[u]}_" for u in writer.kernel.variables]
        return self.slots(writer, "void *unused{}") + values

    def head(self, writer: Writer) -> list[str]:
        """The variables as they are used."""
        return [
            f"  const {writer.type(u.dtype)} {writer[u]} = {writer[u]}_;"
            for u in writer.kernel.variables
        ]

    # --- types and constants

    def type_name(self, dtype: DType, writer: Writer) -> str:
        """The name of a type; lanes of bool are bytes."""
        if dtype.count > 1 and dtype.scalar() is dtypes.bool:
            dtype = dtypes.uint8.vec(dtype.count)
        return super().type_name(dtype, writer)

    def float_constant(self, dtype: DType, value: float) -> str:
        """The shortest literal; bits for infinities and NaN, which have none."""
        rounded = as_stored(dtype, value)
        if rounded - rounded == 0:
            return super().float_constant(dtype, value)
        letter, number = FLOAT_WORDS[dtype]
        return f"as<{self.types[dtype]}>({number.format(struct.pack(f'>{letter}', rounded).hex())})"

    # --- memory

    def loaded(self, u: UOp, text: str, writer: Writer) -> str:
        """The value of a loaded element: behind a gate, C++ would choose between two places."""
        is_gated = u.dtype.count == 1 and u.dtype.kind != "bool" and len(u.src[0].src) == 3
        if is_gated and pointer_of(u.src[0]).op is not Op.DEFINE_REG:
            return f"({writer.type(u.dtype)}){text}"
        return super().loaded(u, text, writer)

    def zero(self, dtype: DType, writer: Writer) -> str:
        """Zero in every lane."""
        return self.constant(dtype, 0) if dtype.count == 1 else f"{writer.type(dtype)}{{}}"

    # --- vectors

    def vectorize(self, u: UOp, writer: Writer) -> str:
        """Lanes as a vector."""
        return f"{writer.type(u.dtype)}{{{{{', '.join(typed_lanes(self, u, writer))}}}}}"

    def extract(self, u: UOp, writer: Writer) -> str:
        """One lane of a vector."""
        (lane,) = u.arg
        vector = u.src[lane // u.src[0].dtype.count]
        text = f"{writer[vector]}.v[{lane % vector.dtype.count}]"
        return f"({text} != 0)" if u.dtype.kind == "bool" else text


def typed_lanes(language: CStyle, u: UOp, writer: Writer) -> list[str]:
    """The lanes of a vector; narrow integers are converted, which C++ does not in braces."""
    scalar = u.dtype.scalar()
    if scalar.kind == "float" or scalar.itemsize >= 4:
        return [unwrapped(writer[s]) for s in u.src]
    kind = language.storage_type(scalar, writer)
    return [f"({kind}){writer[s]}" for s in u.src]
