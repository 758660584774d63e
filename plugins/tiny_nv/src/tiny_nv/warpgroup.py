"""wgmma: matrix instructions of four warps (a warpgroup), as units for plans and as text.

They read operands from shared memory by themselves, by descriptors of its layout, and execute
asynchronously: `product_groups.py` finds which products are committed together and when they are
waited for. Only sm_90a has them.

NVIDIA, "PTX ISA" 9.0, section 9.7.15, "Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tiny_nv.async_copies import AsyncCopy
from tiny_nv.matrix import PTX_NAMES, REGISTER_BYTES
from tiny_nv.operand_loads import MatrixDescriptor
from tinycore.dtype import DType, dtypes
from tinycore.render.base import LinearKernel, pointer_of
from tinycore.uop.matrix import MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = [
    "COMMIT",
    "DESCRIBED",
    "DESCRIPTOR",
    "FENCE",
    "HOPPER",
    "WAIT",
    "WARPGROUP",
    "WarpgroupInstruction",
    "cluster_barrier",
    "descriptor_bits",
    "is_new_sum",
    "is_written_by_threads",
]

HOPPER: Final = 90
HALF_BYTES: Final = 2
STEP_BYTES: Final = 32
"""Bytes along k that one instruction multiplies."""
DESCRIPTOR: Final = MatrixDescriptor("wgmma_rows", turned_bytes=HALF_BYTES)
"""Rows whose pieces of 16 bytes are swizzled: PTX's 128-Byte swizzling mode, or a narrower one."""
SWIZZLES: Final = {128: 1, 64: 2, 32: 3, 16: 0}
"""The swizzling mode in bits 63:62 of a descriptor, by the bytes of a row; 0 for a single piece."""


def descriptor_bits(descriptor: MatrixDescriptor) -> int:
    """A descriptor of wgmma without its address: PTX ISA 9.0, section 9.7.15.5.1.2.

    The stride is the distance from 8 rows to the next 8, the leading dimension's that from panel to
    panel, which is ignored if whole rows lie along k.
    """
    leading = descriptor.panel_bytes >> 4 or 1
    mode, stride = SWIZZLES[descriptor.row_bytes], descriptor.alignment >> 4
    return mode << 62 | stride << 32 | leading << 16


def stores_of(kernel: LinearKernel) -> list[UOp]:
    """The stores of threads, asynchronous copies included."""
    return [u for u in kernel.uops if u.op is Op.STORE or isinstance(u.arg, AsyncCopy)]


def is_written_by_threads(kernel: LinearKernel) -> bool:
    """True if threads write memory that matrix units read by themselves, which needs a fence."""
    return any(pointer_of(u.src[0]) in kernel.alignments for u in stores_of(kernel))


@dataclass(frozen=True)
class WarpgroupInstruction:
    """wgmma.mma_async of four warps: operands in shared memory, or the first one in registers.

    A unit with several times the steps of one instruction is that many instructions.
    """

    unit: MatrixUnit

    @property
    def name(self) -> str:
        """Mnemonic of the instruction in PTX, with its modifiers."""
        kind, unit = PTX_NAMES[self.unit.a], self.unit
        total = "s32" if self.is_integer else "f32"
        shape = f"m64n{unit.n}k{unit.k // self.steps}"
        return f"wgmma.mma_async.sync.aligned.{shape}.{total}.{kind}.{kind}"

    @property
    def steps(self) -> int:
        """Instructions along k."""
        return self.unit.k * self.unit.a.itemsize // STEP_BYTES

    @property
    def registers(self) -> int:
        """Registers of a lane for the first operand; 0 if it is in shared memory."""
        held = self.unit.fragment("a")
        is_held = self.unit.load_of("a") is None
        return held.count * held.dtype.itemsize // REGISTER_BYTES // self.steps if is_held else 0

    @property
    def is_integer(self) -> bool:
        """True if it adds integers."""
        return self.unit.out.kind == "int"

    def factors(self, product: UOp) -> str:
        """Immediates after the predicate: signs, and for halves whether operands are transposed."""
        if self.is_integer:
            return ""
        read = product.src[1:2] if self.registers else product.src[:2]
        turned = (f", {int(is_turned(operand))}" for operand in read)
        return ", 1, 1" + ("".join(turned) if self.unit.a.itemsize == HALF_BYTES else "")

    def advance(self, product: UOp) -> int:
        """Difference between the descriptors of the second operand of successive instructions."""
        load = product.src[1].arg
        along = load.row_bytes * self.unit.k // self.steps if load.is_turned else STEP_BYTES
        return int(along >> 4)

    def outputs(self, is_new: bool = False) -> str:
        """The outputs of inline assembly: the sums `c` of a lane, also read unless `is_new`."""
        letter, way = "r" if self.is_integer else "f", "=&" if is_new else "+"
        count = self.unit.fragment("out").count
        return ", ".join(f'"{way}{letter}"(c.v[{i}])' for i in range(count))

    def name_of(self, products: Sequence[UOp]) -> str:
        """Name of the CUDA C function for a group of products."""
        turned = "".join("ab"[i] for i, s in enumerate(products[0].src[:2]) if is_turned(s))
        across = f"_across_{turned}" if turned else ""
        new = "_new" if is_new_sum(products[0]) else ""
        return f"{self.unit.name}{across}{new}"

    def function(self, products: Sequence[UOp]) -> str:
        """A function in CUDA C of the operands of each product, and of the sums that a lane holds.

        It commits the products as a group and does not wait for them. New sums are its result only.
        """
        is_new, numbers = is_new_sum(products[0]), range(len(products))
        lines, inputs = self.instructions(products)
        parameters = [f"A a{i}, B b{i}" for i in numbers] + ([] if is_new else ["C c"])
        own, fresh = ("  C c;\n", " setp.ne.b32 fresh, 0, 0;") if is_new else ("", "")
        return (
            "template <class C, class A, class B>\n"
            f"FUNCTION C {self.name_of(products)}({', '.join(parameters)}) {{\n"
            f"{''.join(map(self.copied, numbers))}{own}"
            '  asm volatile("{ .reg .pred adds, fresh; '
            f'setp.ne.b32 adds, 1, 0;{fresh} {FENCE};\\n"\n'
            f"{''.join(lines)}"
            f'    "{COMMIT}; }}"\n'
            f"    : {self.outputs(is_new)}\n"
            f'    : {", ".join(inputs)} : "memory");\n'
            "  return c;\n"
            "}"
        )

    def instructions(self, products: Sequence[UOp]) -> tuple[list[str], list[str]]:
        """Lines of inline assembly, and its inputs after the sums of a lane."""
        count = self.unit.fragment("out").count
        sums = ", ".join(f"%{i}" for i in range(count))
        lines: list[str] = []
        inputs: list[str] = []
        for number, product in enumerate(products):
            for step in range(self.steps):
                given = self.inputs(number, step, step * self.advance(product))
                places = [f"%{count + len(inputs) + i}" for i in range(len(given))]
                left = f"{{{', '.join(places[:-1])}}}" if self.registers else places[0]
                adds = "fresh" if is_new_sum(products[0]) and not lines else "adds"
                operands = f"{{{sums}}}, {left}, {places[-1]}, {adds}{self.factors(product)}"
                lines.append(f'    "{self.name} {operands};\\n"\n')
                inputs += given
        return lines, inputs

    def copied(self, number: int) -> str:
        """Definitions of a product's operands as instructions take them: words and descriptors."""
        words = self.registers * self.steps
        left = (
            f"  const vec<unsigned, {words}> x{number} = as<vec<unsigned, {words}>>(a{number});\n"
            if words
            else f"  unsigned long long x{number}; memcpy(&x{number}, &a{number}, 8);\n"
        )
        return f"{left}  unsigned long long y{number}; memcpy(&y{number}, &b{number}, 8);\n"

    def inputs(self, number: int, step: int, advance: int) -> list[str]:
        """Inputs of one instruction: its first operand, and the descriptor of the second one."""
        first = step * self.registers
        words = [f'"r"(x{number}.v[{i}])' for i in range(first, first + self.registers)]
        further = f" + {advance}" if advance else ""
        return [*(words or [f'"l"(x{number})']), f'"l"(y{number}{further})']

    def ended(self, left: int) -> str:
        """A function in CUDA C that waits for all but the last `left` groups; returns its sums."""
        return (
            f"template <class C> FUNCTION C {self.unit.name}_ended_{left}(C c) {{\n"
            f'  asm volatile("{WAIT} {left};" : {self.outputs()} : : "memory");\n'
            "  return c;\n"
            "}"
        )


DESCRIBED: Final = """\
template <class X> FUNCTION X described(const void *p, unsigned long long bits) {
  unsigned long long x = bits | (__cvta_generic_to_shared(p) & 0x3ffff) >> 4;
  X y;
  memcpy(&y, &x, 8);
  return y;
}"""
"""A descriptor, in the type of the elements that a lane would hold."""
FENCE: Final = "wgmma.fence.sync.aligned"
COMMIT: Final = "wgmma.commit_group.sync.aligned"
WAIT: Final = "wgmma.wait_group.sync.aligned"
"""The wait for all groups but a number of the last. Until then the registers of their sums must not
be touched, and the shared memory of their operands must not be written."""


def cluster_barrier(kernel: LinearKernel) -> tuple[str, str]:
    """Both halves of a barrier of all threads of a cluster.

    If no thread stores to shared memory there is nothing to release: the work of units and copies
    is complete when it is waited for.
    """
    is_stored = any(pointer_of(u.src[0]).op is Op.DEFINE_LOCAL for u in stores_of(kernel))
    order = "release" if is_stored else "relaxed"
    return f"barrier.cluster.arrive.{order}.aligned", "barrier.cluster.wait.acquire.aligned"


def is_new_sum(product: UOp) -> bool:
    """True if a product is added to zeros."""
    total = product.src[2]
    lanes = total.src if total.op is Op.VECTORIZE else (total,)
    return all(lane.op is Op.CONST and lane.arg == 0 for lane in lanes)


def is_turned(operand: UOp) -> bool:
    """True if an operand in shared memory is transposed: its rows lie across k."""
    return isinstance(operand.arg, MatrixDescriptor) and operand.arg.is_turned


WARPGROUP_STEPS: Final = {
    8: (("k4",), ("k1", "k2")),
    16: (("k2", "k4"), ("k1", "k8")),
    32: (("k4", "k8"), ("k1", "k2", "k16")),
}
"""The bits of k in the numbers of lanes and of their elements, by k: 32 bytes of elements."""


def warpgroup_unit(a: DType, n: int, out: DType = dtypes.float32) -> MatrixUnit:
    """The product of 64 rows and n columns, with 32 bytes along k.

    For the lanes of sums see PTX ISA 9.0, section 9.7.15.5.1.1, "Register Fragments". Lanes hold no
    operands; the maps of these name each element once.
    """
    columns = [f"n{1 << bit}" for bit in range((n - 1).bit_length())]
    sums = f"n2 n4 m1 m2 m4 m16 m32 | n1 m8 {' '.join(columns[3:])}"
    k = STEP_BYTES // a.itemsize
    lanes, steps = WARPGROUP_STEPS[k]
    down = [f"m{1 << bit}" for bit in range(6)]
    left, right = (
        " ".join((*lanes, *bits[: 7 - len(lanes)], "|", *steps, *bits[7 - len(lanes) :]))
        for bits in (down, columns)
    )
    name = f"wgmma_m64n{n}k{k}_{PTX_NAMES[a]}"
    rounds = a is dtypes.float32
    return MatrixUnit(name, 64, n, k, a, a, out, 128, left, right, sums, rounds, DESCRIPTOR)


def chained_unit(a: DType) -> MatrixUnit:
    """The product of 64 rows in registers, 64 columns and 64 steps.

    Lanes hold the first operand as they hold sums, so sums of one product are an operand of the
    next.
    """
    lanes, name = "m1 m2 m4 m16 m32", f"wgmma_m64n64k64_{PTX_NAMES[a]}_held"
    left = f"k2 k4 {lanes} | k1 m8 k8 k16 k32"
    right = "k2 k4 n1 n2 n4 n8 n16 | k1 k8 k16 k32 n32"
    sums = f"n2 n4 {lanes} | n1 m8 n8 n16 n32"
    load = replace(DESCRIPTOR, operands="b")
    return MatrixUnit(name, 64, 64, 64, a, a, dtypes.float32, 128, left, right, sums, load=load)


WARPGROUP: Final[Mapping[str, WarpgroupInstruction]] = {
    unit.name: WarpgroupInstruction(unit)
    for unit in (
        *(
            unit
            for n in (256, 128, 64)
            for unit in (
                *(warpgroup_unit(a, n) for a in (dtypes.float16, dtypes.bfloat16)),
                *(warpgroup_unit(a, n) for a in (dtypes.fp8e4m3, dtypes.fp8e5m2)),
                warpgroup_unit(dtypes.int8, n, dtypes.int32),
                warpgroup_unit(dtypes.float32, n),
            )
        ),
        *(chained_unit(a) for a in (dtypes.float16, dtypes.bfloat16)),
    )
}
"""The instructions, by the name of the unit."""
