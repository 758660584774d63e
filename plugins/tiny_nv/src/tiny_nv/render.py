"""CUDA C, from tables on the family of C++.

A kernel takes the addresses of its buffers by slot, then the variables by name as `long long`:

    extern "C" __global__ void __launch_bounds__(256) NAME_(float *data0, ..., long long n)

A half is its bits, and computed with by instructions of PTX (`_helpers.py`); bfloat16 and the fp8s
are integers in memory and float32 between.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from tiny_nv._helpers import HELPERS, PRELUDE
from tiny_nv.async_copies import AsyncCopy, CommitGroup, WaitGroup
from tiny_nv.matrix import FUNCTIONS
from tiny_nv.operand_loads import MatrixDescriptor, MatrixLoad
from tiny_nv.phases import Phases, WaitPhase, cluster_of, maps_of
from tiny_nv.product_groups import product_groups, products_in_flight, waits_before
from tiny_nv.program import entry_name
from tiny_nv.warpgroup import (
    DESCRIBED,
    WAIT,
    WARPGROUP,
    cluster_barrier,
    descriptor_bits,
    is_new_sum,
    is_written_by_threads,
)
from tinycore.dtype import DType, PointerDType, dtypes
from tinycore.render.base import LinearKernel
from tinycore.render.cstyle import MatrixCall
from tinycore.render.cxx import Cxx
from tinycore.render.facts import is_safe_division
from tinycore.render.guards import UNDEFINED_IN_C
from tinycore.render.literals import as_stored
from tinycore.render.writer import Writer, unwrapped
from tinycore.uop.node import UOp
from tinycore.uop.op import SHIFTS, Op

__all__ = ["CudaC"]

RESERVED: Final = Cxx.reserved.union(
    "HALF_BINARY begin_phases blockDim blockIdx copy_async copy_box described greatest gridDim "
    "half half_bits in_shared least load_tiles memcpy quotient remainder root rounded shared "
    "tensor_map threadIdx to_float to_half to_int to_long to_unsigned_long wait_phase warpSize "
    "whole".split()
)
"""Words that no variable may be called, those of CUDA and of helpers among them."""


@dataclass(frozen=True)
class CudaC(Cxx):
    """CUDA C of sm_80 and later."""

    name: ClassVar[str] = "NVRTC"
    reserved: ClassVar[frozenset[str]] = RESERVED
    emulated: ClassVar[frozenset[DType]] = frozenset({dtypes.bfloat16, *dtypes.fp8s})
    converts: ClassVar[frozenset[DType]] = frozenset({dtypes.bfloat16})
    types: ClassVar[Mapping[DType, str]] = {**Cxx.types, dtypes.bfloat16: "unsigned short"}
    expressions: ClassVar[Mapping[Op, str]] = {
        **Cxx.expressions,
        Op.SQRT: "root({0})",
        Op.TRUNC: "whole({0})",
        Op.EXP2: "power_of_two({0})",
        Op.MAX: "greatest({0}, {1})",
        Op.MIN: "least({0}, {1})",
    }
    native_ops: ClassVar[frozenset[Op]] = Cxx.native_ops | {Op.MAX, Op.MIN}
    approximate: ClassVar[frozenset[Op]] = frozenset({Op.EXP2})
    defined: ClassVar[frozenset[Op]] = UNDEFINED_IN_C - SHIFTS
    spaces: ClassVar[Mapping[str, str]] = {
        "global": "",
        "local": "__shared__ __align__(16) ",
        "register": "__align__(16) ",
    }
    builtins: ClassVar[Mapping[str, str]] = {"grid": "blockIdx.{xyz}", "block": "threadIdx.{xyz}"}
    barrier: ClassVar[str] = "__syncthreads();"
    matrix: ClassVar[Mapping[str, MatrixCall]] = {
        name: MatrixCall(f"{name}({{0}}, {{1}}, {{2}})", function)
        for name, function in FUNCTIONS.items()
    }
    shuffle: ClassVar[str] = "__shfl_xor_sync(0xffffffffu, {value}, {mask})"
    shared_array: ClassVar[str] = "{type} *{name} = ({type} *)(shared + {offset});"

    # --- the frame

    def prelude(self) -> Sequence[str]:
        """Vectors."""
        return (PRELUDE,)

    def signature(self, writer: Writer) -> str:
        """The head of the kernel, with the size of its blocks."""
        x, y, z = writer.kernel.launch("block")
        name, parameters = entry_name(writer.kernel.name), ", ".join(self.parameters(writer))
        groups = cluster_of(writer.kernel)
        cluster = f"__cluster_dims__({groups}, 1, 1) " if groups > 1 else ""
        bounds = f"{cluster}__launch_bounds__({x * y * z})"
        return f'extern "C" __global__ void {bounds} {name}({parameters})'

    def parameters(self, writer: Writer) -> list[str]:
        """Every slot of the kernel, also one that is not read; the variables; maps of tensors."""
        numbers = range(len(maps_of(writer.kernel)))
        maps = [f"const __grid_constant__ tensor_map map{i}" for i in numbers]
        return super().parameters(writer) + maps

    def head(self, writer: Writer) -> list[str]:
        """Shared memory and the variables."""
        head = super().head(writer)
        if not self.has_dynamic_shared(writer.kernel):
            return head
        alignment = writer.kernel.shared_alignment
        return [f"  extern __shared__ __align__({alignment}) unsigned char shared[];", *head]

    def has_dynamic_shared(self, kernel: LinearKernel) -> bool:
        """True if shared memory is sized at a launch: also where the places of arrays matter."""
        return bool(kernel.alignments) or super().has_dynamic_shared(kernel)

    def write_barrier(self, u: UOp, writer: Writer) -> None:
        """A barrier, behind the fence of writes that matrix units read by themselves.

        It also waits for products, except those that may be in flight.
        """
        if is_written_by_threads(writer.kernel):
            writer.line('asm volatile("fence.proxy.async.shared::cta;" ::: "memory");')
        if (left := products_in_flight(writer.kernel.uops).groups.get(u)) is not None:
            writer.line(f'asm volatile("{WAIT} {left};" ::: "memory");')
        if cluster_of(writer.kernel) > 1:
            arrive, wait = cluster_barrier(writer.kernel)
            writer.line(f'asm volatile("{arrive};\\n{wait};" ::: "memory");')
        else:
            super().write_barrier(u, writer)

    def write_effect(self, u: UOp, writer: Writer) -> None:
        """A copy, or what copies are waited for by: a group of them, a barrier of phases."""
        if isinstance(u.arg, AsyncCopy):
            self.write_async_copy(u, writer)
        elif isinstance(u.arg, CommitGroup):
            writer.line('asm volatile("cp.async.commit_group;" ::: "memory");')
        elif isinstance(u.arg, WaitGroup):
            writer.line(f'asm volatile("cp.async.wait_group {u.arg.left};" ::: "memory");')
        else:
            self.write_phased(u, writer)

    def write_async_copy(self, u: UOp, writer: Writer) -> None:
        """A copy from a buffer to shared memory, where the gate of that holds."""
        writer.define(HELPERS["asynchronous copies"])
        to, origin = u.src
        assert isinstance(to.dtype, PointerDType)
        kind = to.dtype.base
        places = (self.lanes("{pointer}", place, kind, writer) for place in u.src)
        wanted = unwrapped(writer[origin.src[2]]) if len(origin.src) == 3 else "true"
        size = u.arg.elements * kind.itemsize
        text = f"copy_async<{size}>({', '.join(places)}, {wanted});"
        if len(to.src) == 3:
            text = f"if ({unwrapped(writer[to.src[2]])}) {{ {text} }}"
        writer.line(text)

    def write_phased(self, u: UOp, writer: Writer) -> None:
        """A barrier of phases, a copy of a box in one of them, or a wait for one."""
        writer.define(HELPERS["tensor copies"])
        if cluster_of(writer.kernel) > 1:
            writer.define(HELPERS["shared copies"])
        what, gate = u.arg, u.src[0].src[2:]
        at = self.lanes("{pointer}", u.src[what.places - 1], dtypes.uint64, writer)
        if isinstance(what, Phases):
            text = f"begin_phases({at}, {what.copies});"
        elif isinstance(what, WaitPhase):
            text = f"wait_phase({at}, {unwrapped(writer[u.src[1]])});"
        else:
            text = self.copied_box(u, at, writer)
        writer.line(f"if ({unwrapped(writer[gate[0]])}) {{ {text} }}" if gate else text)

    def copied_box(self, u: UOp, barrier: str, writer: Writer) -> str:
        """A copy of a box; groups of a cluster first announce what all of them get."""
        to, signal, _, *coordinates = u.src
        copy, cluster = u.arg.map, u.arg.cluster
        assert isinstance(to.dtype, PointerDType)  # of integers where the map's type is emulated
        place = self.lanes("{pointer}", to, to.dtype.base, writer)
        name = f"map{maps_of(writer.kernel).index(copy)}"
        at = ", ".join(unwrapped(writer[c]) for c in coordinates)
        if cluster == 1:
            return f"copy_box({place}, {name}, {barrier}, {copy.box_bytes}, {at});"
        announced = f"expect_box({barrier}, {copy.box_bytes});"
        writer.line(f"if ({unwrapped(writer[signal.src[2]])}) {{ {announced} }}")
        return f"share_box({place}, {name}, {barrier}, {(1 << cluster) - 1}, {at});"

    def write(self, u: UOp, writer: Writer) -> None:
        """Write one node; of asynchronous products a whole group with its last one."""
        for product, register, left in waits_before(writer.kernel.uops, True).get(u, ()):
            held = product if register is None else register
            self.write_wait(held, product, left, writer)
        if u.op is Op.END:
            super().write(u, writer)
            self.write_ended(u, writer)
        elif u.op is not Op.MATRIX or u.arg.name not in WARPGROUP:
            super().write(u, writer)
        elif products := product_groups(writer.kernel.uops).get(u):
            # other products are written with the last one of their group
            instruction = WARPGROUP[u.arg.name]
            writer.define(instruction.function(products))
            operands = [writer[s] for product in products for s in product.src[:2]]
            if not is_new_sum(products[0]):
                operands.append(writer[products[0].src[2]])
            name = f"{instruction.name_of(products)}<{writer.type(u.dtype)}>"
            writer.texts[u] = writer.fresh("vec")
            writer.declare(u.dtype, writer[u], f"{name}({', '.join(operands)})")

    def write_ended(self, end: UOp, writer: Writer) -> None:
        """The wait for products that a loop left in flight."""
        for register, product in products_in_flight(writer.kernel.uops).ends.get(end, ()):
            self.write_wait(register, product, 0, writer)

    @staticmethod
    def write_wait(held: UOp, product: UOp, left: int, writer: Writer) -> None:
        """The wait for the group of a product, whose sums are `held`, and all but `left` groups."""
        writer.define(WARPGROUP[product.arg.name].ended(left))
        writer.line(f"{writer[held]} = {product.arg.name}_ended_{left}({writer[held]});")

    def read_effect(self, u: UOp, writer: Writer) -> str:
        """An operand loaded by lanes together; or its descriptor, with the bits of its layout."""
        if isinstance(u.arg, MatrixLoad):
            writer.define(HELPERS["tiles"])
            expression = f"load_tiles<{{type}}, {str(u.arg.is_turned).lower()}>({{pointer}})"
        elif isinstance(u.arg, MatrixDescriptor):
            writer.define(DESCRIBED)
            expression = f"described<{{type}}>({{pointer}}, {descriptor_bits(u.arg):#x}ull)"
        else:
            return super().read_effect(u, writer)
        return self.lanes(expression, u.src[0], u.dtype, writer)

    # --- types and constants

    def type_name(self, dtype: DType, writer: Writer) -> str:
        """The name of a type; that of a half needs its definition."""
        if dtype.scalar() is dtypes.float16:
            writer.define(HELPERS["half"])
        return super().type_name(dtype, writer)

    def float_constant(self, dtype: DType, value: float) -> str:
        """The shortest literal; bits for halves."""
        if dtype is not dtypes.float16:
            return super().float_constant(dtype, value)
        return f"half_bits(0x{struct.pack('>e', as_stored(dtype, value)).hex()})"

    # --- expressions

    def template(self, u: UOp) -> str:
        """The expression template of a node; greatest and least of a type that C++ must be told."""
        text = super().template(u)
        told = u.op in (Op.MAX, Op.MIN) and u.dtype not in (dtypes.float32, dtypes.float16)
        return text.replace("(", "<{type}>(", 1) if told and u.dtype.kind != "bool" else text

    def alu(self, u: UOp, operands: Sequence[str], writer: Writer) -> str:
        """Arithmetic; quotients that may be by zero, and what is no operator, by a helper."""
        if u.op in (Op.IDIV, Op.MOD) and not is_safe_division(u):
            writer.define(HELPERS["quotients"])
            kind = writer.type(u.dtype)
            name = "quotient" if u.op is Op.IDIV else "remainder"
            return f"{name}<{kind}>({', '.join(map(unwrapped, operands))})"
        if u.op in (Op.SQRT, Op.TRUNC, Op.EXP2):
            writer.define(HELPERS["roots"])
        if u.op in (Op.MAX, Op.MIN) and u.dtype.kind != "bool":
            writer.define(HELPERS["extremes"])
        return super().alu(u, operands, writer)

    def cast(self, u: UOp, writer: Writer) -> str:
        """A value converted; a half through float, a float to an integer by a helper."""
        source, target, text = u.src[0].dtype, u.dtype, writer[u.src[0]]
        if source is target:
            return text
        if source is dtypes.bfloat16:
            writer.define(HELPERS["bfloat16"])
            source, text = dtypes.float32, f"from_bfloat16({unwrapped(text)})"
        if source is dtypes.float16:
            source, text = dtypes.float32, f"to_float({unwrapped(text)})"
        if target is dtypes.float16:
            writer.type(target)
            single = text if source is dtypes.float32 else f"(float){text}"
            return f"to_half({unwrapped(single)})"
        if target is dtypes.bfloat16:
            writer.define(HELPERS["bfloat16"])
            return f"to_bfloat16((float){text})"
        if target.kind == "bool":
            return f"({text} != 0)"
        if source.kind == "float" and target.kind != "float":
            return self.truncated(target, text, writer)
        return self.cast_template.format(text, type=writer.type(target))

    def truncated(self, target: DType, text: str, writer: Writer) -> str:
        """A float as an integer."""
        writer.define(HELPERS["truncations"])
        if target is dtypes.uint64:
            return f"to_unsigned_long({unwrapped(text)})"
        wide = target.itemsize == 8 or target in (dtypes.uint32, dtypes.index)
        name = "to_long" if wide else "to_int"
        return f"(({writer.type(target)}){name}({unwrapped(text)}))"
