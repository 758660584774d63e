"""The Metal Shading Language, from tables on the C family.

A kernel takes its buffers by slot, then, where it has variables, their values in one array:

    kernel void NAME_(device float *data0 [[buffer(0)]], ..., constant long *values [[buffer(2)]],
        uint3 group [[threadgroup_position_in_grid]],
        uint3 thread_ [[thread_position_in_threadgroup]])

Vectors are only moved: up to four lanes by the language's own types, more by `lanes`, which holds
several of those. A bool is a byte in memory. Mathematics is that of IEEE 754: the compiler is asked
for no fast mathematics, and a product is fused with a sum where the text says so. Below language
3.1 there is no bfloat, which then is an integer in memory and float between; fp8 always is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from tiny_metal.matrix import CALLS
from tinycore.dtype import DType, dtypes
from tinycore.render.cstyle import CStyle, MatrixCall
from tinycore.render.cxx import CXX_WORDS, typed_lanes
from tinycore.render.literals import as_stored
from tinycore.render.writer import Writer, unwrapped
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["Msl", "MslWithBfloat", "entry_name"]

MOST_LANES: Final = 4
"""The widest vector that the language has."""

RESERVED: Final = CXX_WORDS.union(
    "INFINITY M_PI_F NAN access array as_type atomic bfloat buffer constant depth2d device fma "
    "fragment group half imageblock intersector kernel lanes matrix mem_flags mesh metal "
    "object_data packed_float4 patch ptrdiff_t quadgroup ray ray_data sampler simdgroup size_t "
    "sqrt texture texture2d thread thread_ threadgroup threadgroup_barrier tile trunc uchar uint "
    "ulong ushort values vec vertex visible".split()
)
"""Words of the language, and what a kernel names itself, which nothing else may be called."""

WIDE_VECTOR: Final = """\
template <typename T, int N> struct lanes { vec<T, 4> part[N / 4]; };"""


@dataclass(frozen=True)
class Msl(CStyle):
    """MSL of systems, or of GPUs, without bfloat."""

    name: ClassVar[str] = "MSL"
    reserved: ClassVar[frozenset[str]] = RESERVED
    emulated: ClassVar[frozenset[DType]] = frozenset({dtypes.bfloat16, *dtypes.fp8s})
    lacking: ClassVar[frozenset[DType]] = frozenset({dtypes.float64})
    vector_ops: ClassVar[bool] = False
    stores_bytes: ClassVar[bool] = True
    types: ClassVar[Mapping[DType, str]] = {
        **{dtype: name for dtype, name in CStyle.types.items() if dtype is not dtypes.float64},
        dtypes.uint8: "uchar",
        dtypes.uint16: "ushort",
        dtypes.uint32: "uint",
        dtypes.uint64: "ulong",
        dtypes.bfloat16: "bfloat",
    }
    wide_index: ClassVar[str] = "long"
    spaces: ClassVar[Mapping[str, str]] = {
        "global": "device ",
        "local": "threadgroup ",
        "register": "thread ",
    }
    restrict: ClassVar[str] = ""
    builtins: ClassVar[Mapping[str, str]] = {"grid": "group.{xyz}", "block": "thread_.{xyz}"}
    barrier: ClassVar[str] = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    array_declaration: ClassVar[str] = "alignas(16) {space}{type} {name}[{size}];"
    bitcast_template: ClassVar[str] = "as_type<{type}>({0})"
    function: ClassVar[str] = "inline {type} {name}({parameters}) {{ {body} }}"
    matrix: ClassVar[Mapping[str, MatrixCall]] = {name: MatrixCall(*c) for name, c in CALLS.items()}
    shuffle: ClassVar[str] = "simd_shuffle_xor({value}, {mask}u)"

    # --- the frame

    def prelude(self) -> Sequence[str]:
        """The library of the language."""
        return ("#include <metal_stdlib>", "using namespace metal;")

    def signature(self, writer: Writer) -> str:
        """The head of the kernel."""
        parameters = ",\n    ".join(self.parameters(writer))
        return f"kernel void {entry_name(writer.kernel.name)}({parameters})"

    def parameters(self, writer: Writer) -> list[str]:
        """The buffers by slot, the values of variables behind them, and where a thread is."""
        kernel = writer.kernel
        given = [
            f"{self.pointer_type(u, writer)}{writer[u]} [[buffer({u.arg})]]" for u in kernel.buffers
        ]
        if kernel.variables:
            behind = max((u.arg for u in kernel.buffers), default=-1) + 1
            given.append(f"constant long *values [[buffer({behind})]]")
        return [
            *given,
            "uint3 group [[threadgroup_position_in_grid]]",
            "uint3 thread_ [[thread_position_in_threadgroup]]",
        ]

    def head(self, writer: Writer) -> list[str]:
        """The variables as they are used."""
        return [
            f"  const {writer.type(u.dtype)} {writer[u]} = values[{place}];"
            for place, u in enumerate(writer.kernel.variables)
        ]

    # --- types and constants

    def type_name(self, dtype: DType, writer: Writer) -> str:
        """The name of a type; lanes of bool are bytes."""
        if dtype.count == 1:
            return super().type_name(dtype, writer)
        scalar = dtype.scalar()
        name = "uchar" if scalar is dtypes.bool else self.type_name(scalar, writer)
        if dtype.count <= MOST_LANES:
            return f"{name}{dtype.count}"
        writer.define(WIDE_VECTOR)
        return f"lanes<{name}, {dtype.count}>"

    def float_constant(self, dtype: DType, value: float) -> str:
        """The shortest literal; what has none is made of a float's."""
        if dtype is dtypes.float16:
            value = as_stored(dtype, value)
        if dtype is dtypes.float32 or (dtype is dtypes.float16 and value - value == 0):
            return super().float_constant(dtype, value)
        return f"{self.types[dtype]}({super().float_constant(dtypes.float32, value)})"

    def repeated(self, text: str, dtype: DType, writer: Writer) -> str:
        """A literal or name in every lane of a type."""
        return text if dtype.count == 1 else self.vector_of([text] * dtype.count, dtype, writer)

    def vector_of(self, lanes: Sequence[str], dtype: DType, writer: Writer) -> str:
        """Lanes as a vector, made of several where there are more than four."""
        kind = writer.type(dtype)
        if len(lanes) <= MOST_LANES:
            text = lanes[0] if len(set(lanes)) == 1 else ", ".join(lanes)
            return f"{kind}({text})"
        quarter = dtype.scalar().vec(MOST_LANES)
        starts = range(0, len(lanes), MOST_LANES)
        parts = [self.vector_of(lanes[i : i + MOST_LANES], quarter, writer) for i in starts]
        return f"{kind}{{{{{', '.join(parts)}}}}}"

    # --- expressions

    def template(self, u: UOp) -> str:
        """The expression template of a node; products are fused with sums by name."""
        if u.op is Op.MULACC and u.dtype in (dtypes.float32, dtypes.float16):
            return "fma({0}, {1}, {2})"
        if u.op in (Op.SQRT, Op.TRUNC) and u.dtype is dtypes.bfloat16:
            return f"bfloat({super().template(u).replace('{0}', 'float({0})')})"
        return super().template(u)

    def cast(self, u: UOp, writer: Writer) -> str:
        """A value converted; half and bfloat, which do not know each other, through float."""
        kinds = {u.dtype, u.src[0].dtype}
        if kinds == {dtypes.float16, dtypes.bfloat16}:
            return f"({writer.type(u.dtype)})(float){writer[u.src[0]]}"
        return super().cast(u, writer)

    def bitcast(self, u: UOp, writer: Writer) -> str:
        """The same bits as another type; what C++ has promoted to int is made its type again."""
        source = u.src[0].dtype
        text = f"({writer.type(source)}){writer[u.src[0]]}"
        return self.bitcast_template.format(text, type=writer.type(u.dtype))

    def vectorize(self, u: UOp, writer: Writer) -> str:
        """Lanes as a vector."""
        return self.vector_of(typed_lanes(self, u, writer), u.dtype, writer)

    def extract(self, u: UOp, writer: Writer) -> str:
        """One lane of a vector."""
        (lane,) = u.arg
        vector = u.src[lane // u.src[0].dtype.count]
        text, place = writer[vector], lane % vector.dtype.count
        named = text if text.isidentifier() else f"({unwrapped(text)})"
        if vector.dtype.count > MOST_LANES:
            named, place = f"{named}.part[{place // MOST_LANES}]", place % MOST_LANES
        text = f"{named}.{'xyzw'[place]}"
        return f"({text} != 0)" if u.dtype.kind == "bool" else text


class MslWithBfloat(Msl):
    """MSL from 3.1 on, of GPUs whose compiler knows bfloat."""

    emulated: ClassVar[frozenset[DType]] = Msl.emulated - {dtypes.bfloat16}


def entry_name(name: str) -> str:
    """Name of a kernel in MSL: no keyword, nor one of its functions."""
    return f"{name}_"
