"""OpenCL C 1.2, from tables on the C family.

A kernel takes its buffers by slot, then the byte at which each starts, then the variables by name,
all numbers as `long`:

    kernel void NAME_(global T *base0, ..., long start0, ..., long n)

An image stands in its slot as `image2d_t`, whose start is not used.

What OpenCL leaves undefined is defined as everywhere (docs/numerics.md): integers wrap, a quotient
by zero is 0, a float that does not fit an integer becomes the least one. A bool is a byte in
memory, and lanes of bool are chars of 0 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from tiny_cl import _helpers as helpers
from tiny_cl.probe import ClInfo
from tinycore.dtype import DType, ImageDType, dtypes
from tinycore.errors import UnsupportedError
from tinycore.render.base import Dims, Limits, pointer_of
from tinycore.render.cstyle import CStyle
from tinycore.render.facts import is_safe_division
from tinycore.render.guards import UNDEFINED_IN_C
from tinycore.render.writer import Writer, unwrapped
from tinycore.uop.node import UOp
from tinycore.uop.op import COMPARISON, SHIFTS, Op

__all__ = ["OpenClC", "OpenClCWithHalf", "entry_name", "limits_of"]

SAMPLER: Final = (
    "constant sampler_t nearest = "
    "CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;"
)
"""Reads the very pixel, and zero outside of an image."""
RESERVED: Final = frozenset(
    "auto bool break case char const constant continue default do double else enum event_t "
    "extern float for global goto half if image2d_t inline int kernel local long nearest "
    "pipe private quad read_only read_write register restrict return sampler_t short signed "
    "sizeof static struct switch typedef uchar uint ulong union unsigned ushort void "
    "volatile while write_only".split()
)
"""Words that nothing may be called (OpenCL C 1.2, section 6.1.9)."""

VECTOR_BYTES: Final = 16
"""The widest load of a thread: float4, the most that graphics cards move at once."""
WANTED_THREADS: Final = 128
"""Threads in a group: a few of the 32 or 64 that a card runs in step, and enough for a core."""

THREADS_OF_A_CORE: Final = 8
THREADS_OF_A_UNIT: Final = 256
"""Threads that keep a core, or a unit of a card, busy."""


def limits_of(info: ClInfo) -> Limits:
    """The limits of a device, by which plans are made."""
    counts: Dims = (info.group_counts,) * 3
    return Limits(
        threads=info.units * (THREADS_OF_A_CORE if info.is_processor else THREADS_OF_A_UNIT),
        vector_bytes=VECTOR_BYTES,
        grid=counts,
        grid_varies=True,
        block=info.group_axes,
        block_threads=info.group_threads,
        block_wanted=min(WANTED_THREADS, info.group_threads),
        shared_bytes=info.shared_bytes,
        shared_is_near=not info.is_processor,
        buffers=info.buffers,
        image=info.largest_image,
    )


@dataclass(frozen=True)
class OpenClC(CStyle):
    """OpenCL C of a device that can only store float16."""

    has_double: bool = True

    reserved: ClassVar[frozenset[str]] = RESERVED
    name: ClassVar[str] = "OPENCL"
    emulated: ClassVar[frozenset[DType]] = frozenset(
        {dtypes.float16, dtypes.bfloat16, *dtypes.fp8s}
    )
    types: ClassVar[Mapping[DType, str]] = {
        **CStyle.types,
        dtypes.uint8: "uchar",
        dtypes.uint16: "ushort",
        dtypes.uint32: "uint",
        dtypes.uint64: "ulong",
    }
    stores_bytes: ClassVar[bool] = True
    defined: ClassVar[frozenset[Op]] = UNDEFINED_IN_C - SHIFTS
    spaces: ClassVar[Mapping[str, str]] = {"global": "global ", "local": "local ", "register": ""}
    builtins: ClassVar[Mapping[str, str]] = {
        "grid": "get_group_id({0})",
        "block": "get_local_id({0})",
    }
    barrier: ClassVar[str] = "barrier(CLK_LOCAL_MEM_FENCE);"
    vector_load: ClassVar[str] = "vload{count}(0, {pointer})"
    vector_store: ClassVar[str] = "vstore{count}({value}, 0, {pointer});"
    pixel_load: ClassVar[str] = "read_imagef({image}, nearest, (int2)({column}, {row}))"
    pixel_store: ClassVar[str] = "write_imagef({image}, (int2)({column}, {row}), {value});"

    def __post_init__(self) -> None:
        if not self.has_double:  # a fact of the device, and so of this object, not of its class
            object.__setattr__(self, "lacking", frozenset({dtypes.float64}))

    # --- the frame

    def prelude(self) -> Sequence[str]:
        """Extensions that must be asked for, and products that may be fused into sums."""
        asked = ["#pragma OPENCL EXTENSION cl_khr_fp64 : enable"] if self.has_double else []
        return (*asked, "#pragma OPENCL FP_CONTRACT ON")

    def head(self, writer: Writer) -> list[str]:
        """The pointers to what the buffers hold."""
        buffers = writer.kernel.buffers
        return [self.start_of(u, writer) for u in buffers if not isinstance(u.dtype, ImageDType)]

    def signature(self, writer: Writer) -> str:
        """The head of the kernel, with the size of its groups."""
        kernel = writer.kernel
        size = ", ".join(map(str, kernel.launch("block")))
        parameters = ", ".join(self.parameters(writer))
        return (
            f"kernel __attribute__((reqd_work_group_size({size})))\n"
            f"void {entry_name(kernel.name)}({parameters})"
        )

    def parameters(self, writer: Writer) -> list[str]:
        """Every slot of the kernel, also one that is not read; then numbers."""
        bases = self.slots(writer, "global void *base{}")
        starts = [f"const long start{i}" for i in range(len(bases))]
        return bases + starts + [f"const long {writer[u]}" for u in writer.kernel.variables]

    def parameter(self, buffer: UOp, writer: Writer) -> str:
        """The parameter type of a slot: a buffer, or an image that is either read or written."""
        if not isinstance(buffer.dtype, ImageDType):
            return f"{self.pointer_type(buffer, writer)}{self.restrict}base{buffer.arg}"
        writer.define(SAMPLER)
        way = "write_only" if buffer.arg in writer.kernel.written else "read_only"
        return f"{way} image2d_t {writer[buffer]}"

    def start_of(self, buffer: UOp, writer: Writer) -> str:
        """The pointer to what a slot holds."""
        kind, i = self.pointer_type(buffer, writer), buffer.arg
        byte = f"{'' if i in writer.kernel.written else 'const '}global char *"
        return f"  {kind}{self.restrict}{writer[buffer]} = ({kind})(({byte})base{i} + start{i});"

    # --- types and constants

    def type_name(self, dtype: DType, writer: Writer) -> str:
        """The name of a type; counters are as wide as the kernel's addresses need."""
        scalar = dtype.scalar()
        if scalar is dtypes.float64 and not self.has_double:
            raise UnsupportedError(
                "this device has no float64 (cl_khr_fp64); compute in float32, or on another device"
            )
        if dtype.count == 1:
            if dtype is dtypes.index:
                return "int" if writer.kernel.index_bits == 32 else "long"
            return self.types[dtype]
        name = "char" if scalar is dtypes.bool else self.type_name(scalar, writer)
        return f"{name}{dtype.count}"

    def loaded(self, u: UOp, text: str, writer: Writer) -> str:
        """The value of what was read: any byte but 0 is true."""
        if u.dtype.kind != "bool" or pointer_of(u.src[0]).op is Op.DEFINE_REG:
            return text
        return self.as_bool(u.dtype, f"{text} != {self.zero_of('uchar', u.dtype)}")

    def stored(self, u: UOp, text: str, writer: Writer) -> str:
        """Lanes of bool are bytes in memory."""
        value = u.src[1].dtype
        if value.kind != "bool" or value.count == 1 or pointer_of(u.src[0]).op is Op.DEFINE_REG:
            return text
        return f"as_uchar{value.count}({text})"

    @staticmethod
    def zero_of(name: str, dtype: DType) -> str:
        """Zero in as many lanes as a type has."""
        return "0" if dtype.count == 1 else f"({name}{dtype.count})(0)"

    # --- expressions

    def as_bool(self, dtype: DType, test: str) -> str:
        """A comparison as bool: those of vectors yield lanes of -1 and 0."""
        if dtype.count == 1:
            return f"({test})"
        return f"(convert_char{dtype.count}({test}) & (char{dtype.count})(1))"

    def alu(self, u: UOp, operands: Sequence[str], writer: Writer) -> str:
        """Arithmetic; quotients that may be by zero go through a helper."""
        if u.op in (Op.IDIV, Op.MOD) and not is_safe_division(u):
            name = helpers.division(u.op, u.dtype, self, writer)
            return f"{name}({', '.join(map(unwrapped, operands))})"
        if u.dtype.count == 1:
            return super().alu(u, operands, writer)
        if u.op in COMPARISON:
            return self.as_bool(u.dtype, unwrapped(super().alu(u, operands, writer)))
        if u.op is Op.WHERE and u.src[0].dtype.count > 1:
            operands = [self.mask(operands[0], u.dtype), *operands[1:]]
        return super().alu(u, operands, writer)

    @staticmethod
    def mask(text: str, dtype: DType) -> str:
        """Lanes of bool as `?:` wants them: as wide as what is chosen."""
        lanes = {1: "char", 2: "short", 4: "int", 8: "long"}[dtype.scalar().itemsize]
        return f"(convert_{lanes}{dtype.count}({unwrapped(text)}) != ({lanes}{dtype.count})(0))"

    def convert(self, dtype: DType, text: str, writer: Writer) -> str:
        """The text reinterpreted between integers that wrap."""
        if dtype.count == 1:
            return super().convert(dtype, text, writer)
        return f"as_{writer.type(dtype)}({unwrapped(text)})"

    def cast(self, u: UOp, writer: Writer) -> str:
        """A value converted; a float to an integer by a helper that knows what does not fit."""
        source, text = u.src[0].dtype, writer[u.src[0]]
        if u.dtype.kind == "bool":
            zero = self.zero_of(writer.type(source.scalar()), source)
            return self.as_bool(u.dtype, f"{text} != {zero}")
        if source.kind == "float" and u.dtype.kind != "float":
            name = helpers.truncation(u.dtype, source, self, writer)
            return f"{name}({unwrapped(text)})"
        if u.dtype.count == 1:
            return super().cast(u, writer)
        return f"convert_{writer.type(u.dtype)}({unwrapped(text)})"

    def bitcast(self, u: UOp, writer: Writer) -> str:
        """The same bits as another type."""
        return f"as_{writer.type(u.dtype)}({unwrapped(writer[u.src[0]])})"

    def float_constant(self, dtype: DType, value: float) -> str:
        """A literal; those of infinity and NaN are float and must be made what they are for."""
        text = super().float_constant(dtype, value)
        if dtype is dtypes.float32 or not any(word in text for word in (self.infinity, self.nan)):
            return text
        return f"(({self.types[dtype]}){text})"

    def extract(self, u: UOp, writer: Writer) -> str:
        """Some lanes of one or more vectors."""
        sources = [writer[s] for s in u.src]
        named = [s if s.isidentifier() else f"({unwrapped(s)})" for s in sources]
        count = u.src[0].dtype.count
        lanes = ", ".join(f"{named[lane // count]}.s{lane % count:x}" for lane in u.arg)
        if u.dtype.count == 1:
            return lanes if u.dtype.kind != "bool" else f"({lanes} != 0)"
        return self.vector.format(type=writer.type(u.dtype), lanes=lanes)


class OpenClCWithHalf(OpenClC):
    """OpenCL C of a device that computes in float16."""

    emulated: ClassVar[frozenset[DType]] = OpenClC.emulated - {dtypes.float16}

    def prelude(self) -> Sequence[str]:
        """Halves must be asked for too."""
        return ("#pragma OPENCL EXTENSION cl_khr_fp16 : enable", *super().prelude())


def entry_name(name: str) -> str:
    """The name of a kernel in OpenCL C: no keyword, and none of the built-in functions."""
    return f"{name}_"
