"""mma.sync: matrix instructions of a warp, as units that plans know and as both renderers write.

Which lane holds which element: NVIDIA, "PTX ISA" 9.0, section 9.7.14.5, "Matrix multiply-accumulate
operation using mma instruction", under "Matrix Fragments for mma.m16n8k8", "... mma.m16n8k16 with
floating point type" and "... mma.m16n8k32". Lane bits 0 and 1 are `threadID_in_group`, the others
`groupID`; a register has neighbors along k, of as many elements as 32 bits hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

from tinycore.dtype import DType, dtypes
from tinycore.render.base import LinearKernel, pointer_of
from tinycore.uop.matrix import MatrixDescriptor, MatrixLoad, MatrixUnit
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = [
    "COMMIT",
    "DESCRIBED",
    "DESCRIPTOR",
    "FENCE",
    "FUNCTIONS",
    "HOPPER",
    "INSTRUCTIONS",
    "LOAD",
    "WAIT",
    "WARPGROUP",
    "Awaited",
    "Instruction",
    "WarpgroupInstruction",
    "cluster_barrier",
    "descriptor_bits",
    "is_new_sum",
    "is_written_by_threads",
    "products_awaited",
    "products_begun_together",
    "products_under_way",
    "registers_of_sums",
    "units_of",
]

REGISTER_BYTES: Final = 4
LOAD: Final = MatrixLoad("ldmatrix", turned_bytes=2)
"""ldmatrix, which moves up to four tiles of 8 rows of 16 bytes, and turns those of 2 bytes: PTX
ISA 9.0, section 9.7.14.5.15."""
OUT_MAP: Final = "n2 n4 m1 m2 m4 | n1 m8"
OPERAND_MAPS: Final = {
    8: ("k1 k2 m1 m2 m4 | m8 k4", "k1 k2 n1 n2 n4 | k4"),
    16: ("k2 k4 m1 m2 m4 | k1 m8 k8", "k2 k4 n1 n2 n4 | k1 k8"),
    32: ("k4 k8 m1 m2 m4 | k1 k2 m8 k16", "k4 k8 n1 n2 n4 | k1 k2 k16"),
}
"""The maps of A and B by k, which is 32 bytes of elements."""
PTX_NAMES: Final = {
    dtypes.float16: "f16",
    dtypes.bfloat16: "bf16",
    dtypes.float32: "tf32",
    dtypes.int8: "s8",
    dtypes.fp8e4m3: "e4m3",
    dtypes.fp8e5m2: "e5m2",
}
ROUNDED: Final = """\
template <class X, class A> FUNCTION X rounded(A a) {
  X x;
#pragma unroll
  for (int i = 0; i < int(sizeof(X) / 4); i++)
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x.v[i]) : "f"(a.v[i]));
  return x;
}
"""
FIRST_WITH_FP8: Final = 89
HALF_BYTES: Final = 2
STEP_BYTES: Final = 32
"""Bytes along k that one instruction multiplies."""
HOPPER: Final = 90


@dataclass(frozen=True)
class Instruction:
    """One mma.sync."""

    unit: MatrixUnit
    since: int = 80
    """The compute capability from which on there is one: 80 is 8.0."""
    version: str = "8.0"
    """The PTX that has it."""

    @property
    def name(self) -> str:
        """Mnemonic of the instruction in PTX, with its modifiers."""
        kind, total = PTX_NAMES[self.unit.a], "s32" if self.unit.out.kind == "int" else "f32"
        return f"mma.sync.aligned.m16n8k{self.unit.k}.row.col.{total}.{kind}.{kind}.{total}"

    def registers(self, operand: str) -> int:
        """The registers that a lane holds of `a`, `b` or `out`."""
        held = self.unit.fragment(operand)
        return held.count * held.dtype.itemsize // REGISTER_BYTES

    @property
    def function(self) -> str:
        """A function of CUDA C, of what a lane holds of each matrix."""
        counts = [self.registers(operand) for operand in ("out", "a", "b")]
        starts = (0, counts[0], counts[0] + counts[1])
        sums, left, right = (
            ", ".join(f"%{start + i}" for i in range(count))
            for start, count in zip(starts, counts, strict=True)
        )
        letter = "r" if self.unit.out.kind == "int" else "f"
        outputs = ", ".join(f'"+{letter}"(c.v[{i}])' for i in range(counts[0]))
        inputs = ", ".join(
            f'"r"({name}.v[{i}])'
            for name, count in (("x", counts[1]), ("y", counts[2]))
            for i in range(count)
        )
        held = "rounded" if self.unit.rounds else "as"
        return (
            f"{ROUNDED if self.unit.rounds else ''}"
            f"template <class A, class B, class C> FUNCTION C {self.unit.name}(A a, B b, C c) {{\n"
            f"  const vec<unsigned, {counts[1]}> x = {held}<vec<unsigned, {counts[1]}>>(a);\n"
            f"  const vec<unsigned, {counts[2]}> y = {held}<vec<unsigned, {counts[2]}>>(b);\n"
            f'  asm volatile("{self.name} {{{sums}}}, {{{left}}}, {{{right}}}, {{{sums}}};"\n'
            f"    : {outputs}\n"
            f"    : {inputs});\n"
            "  return c;\n"
            "}"
        )


def unit_of(a: DType, out: DType = dtypes.float32) -> MatrixUnit:
    """The product of 16 rows and 8 columns whose operands have 32 bytes along k."""
    k = 32 // a.itemsize
    name = f"mma_m16n8k{k}_{PTX_NAMES[a]}"
    rounds = a is dtypes.float32  # which is tf32 in an instruction
    return MatrixUnit(name, 16, 8, k, a, a, out, 32, *OPERAND_MAPS[k], OUT_MAP, rounds, LOAD)


INSTRUCTIONS: Final[Mapping[str, Instruction]] = {
    instruction.unit.name: instruction
    for instruction in (
        Instruction(unit_of(dtypes.float16)),
        Instruction(unit_of(dtypes.bfloat16)),
        Instruction(unit_of(dtypes.int8, dtypes.int32)),
        Instruction(unit_of(dtypes.fp8e4m3), FIRST_WITH_FP8, "8.4"),
        Instruction(unit_of(dtypes.fp8e5m2), FIRST_WITH_FP8, "8.4"),
        Instruction(unit_of(dtypes.float32)),
    )
}
"""By the name of the unit."""


DESCRIPTOR: Final = MatrixDescriptor("wgmma_rows", turned_bytes=HALF_BYTES)
"""Rows whose pieces of 16 bytes are exchanged: PTX's 128-Byte swizzling mode, or a narrower one."""
SWIZZLES: Final = {128: 1, 64: 2, 32: 3, 16: 0}
"""The mode in bits 63:62 of a descriptor, by the bytes of a row; one piece is exchanged by none."""


def descriptor_bits(descriptor: MatrixDescriptor) -> int:
    """A descriptor of wgmma without its address: PTX ISA 9.0, section 9.7.15.5.1.2.

    The stride goes from 8 rows to the next, the leading dimension's from panel to panel; that is
    not read where whole rows lie along k.
    """
    leading = descriptor.panel_bytes >> 4 or 1
    mode, stride = SWIZZLES[descriptor.row_bytes], descriptor.alignment >> 4
    return mode << 62 | stride << 32 | leading << 16


def is_written_by_threads(kernel: LinearKernel) -> bool:
    """True if threads store what matrix units read by themselves, which needs a proxy fence."""
    stores = (u for u in kernel.uops if u.op in (Op.STORE, Op.ASYNC_COPY))
    return any(pointer_of(u.src[0]) in kernel.alignments for u in stores)


@dataclass(frozen=True)
class WarpgroupInstruction:
    """wgmma.mma_async of four warps: operands are in shared memory, or the first in registers.

    Where a unit has several times the steps of one instruction, it is as many of them.
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
        """Registers of a lane for the first operand of an instruction; 0 if that is described."""
        held = self.unit.fragment("a")
        is_held = self.unit.load_of("a") is None
        return held.count * held.dtype.itemsize // REGISTER_BYTES // self.steps if is_held else 0

    @property
    def is_integer(self) -> bool:
        """True if it adds integers."""
        return self.unit.out.kind == "int"

    def factors(self, product: UOp) -> str:
        """Operands behind the predicate: signs, and of halves whether they lie across k."""
        if self.is_integer:
            return ""
        read = product.src[1:2] if self.registers else product.src[:2]
        turned = (f", {int(is_turned(operand))}" for operand in read)
        return ", 1, 1" + ("".join(turned) if self.unit.a.itemsize == HALF_BYTES else "")

    def advance(self, product: UOp) -> int:
        """Difference of the descriptors of the second operand from one instruction to the next."""
        load = product.src[1].arg
        along = load.row_bytes * self.unit.k // self.steps if load.is_turned else STEP_BYTES
        return int(along >> 4)

    def outputs(self, is_new: bool = False) -> str:
        """The operands of an inline instruction that writes the sums `c` of a lane, and reads them
        but for new ones."""
        letter, way = "r" if self.is_integer else "f", "=&" if is_new else "+"
        count = self.unit.fragment("out").count
        return ", ".join(f'"{way}{letter}"(c.v[{i}])' for i in range(count))

    def name_of(self, products: Sequence[UOp]) -> str:
        """Name of the function of CUDA C for a row of products."""
        turned = "".join("ab"[i] for i, s in enumerate(products[0].src[:2]) if is_turned(s))
        across = f"_across_{turned}" if turned else ""
        new = "_new" if is_new_sum(products[0]) else ""
        return f"{self.unit.name}{across}{new}"

    def function(self, products: Sequence[UOp]) -> str:
        """A function of CUDA C, of both operands of each product and of the sums that a lane holds.

        It leaves the products under way. Sums that begin with it are its own.
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
        """Lines of inline instructions, and their inputs behind the sums of a lane."""
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
        """The operands of a product as an instruction takes them: words, and descriptors."""
        words = self.registers * self.steps
        left = (
            f"  const vec<unsigned, {words}> x{number} = as<vec<unsigned, {words}>>(a{number});\n"
            if words
            else f"  unsigned long long x{number}; memcpy(&x{number}, &a{number}, 8);\n"
        )
        return f"{left}  unsigned long long y{number}; memcpy(&y{number}, &b{number}, 8);\n"

    def inputs(self, number: int, step: int, advance: int) -> list[str]:
        """Inputs of an instruction of a product: those of its first operand, and a descriptor."""
        first = step * self.registers
        words = [f'"r"(x{number}.v[{i}])' for i in range(first, first + self.registers)]
        further = f" + {advance}" if advance else ""
        return [*(words or [f'"l"(x{number})']), f'"l"(y{number}{further})']

    def ended(self, left: int) -> str:
        """A function of CUDA C that waits for all groups but the last ones, of sums of the first of
        them."""
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
"""A descriptor in the place of the elements that a lane would hold."""
FENCE: Final = "wgmma.fence.sync.aligned"
COMMIT: Final = "wgmma.commit_group.sync.aligned"
WAIT: Final = "wgmma.wait_group.sync.aligned"
"""The wait for all groups of products but so many: before it registers of their sums must not be
touched, nor shared memory of their operands be written."""


def cluster_barrier(kernel: LinearKernel) -> tuple[str, str]:
    """Both halves of a barrier of all threads of a cluster.

    Where no thread stores to shared memory there is nothing to release: units and copies have done
    what they do when they are waited for.
    """
    stores = (u for u in kernel.uops if u.op in (Op.STORE, Op.ASYNC_COPY))
    is_stored = any(pointer_of(u.src[0]).op is Op.DEFINE_LOCAL for u in stores)
    order = "release" if is_stored else "relaxed"
    return f"barrier.cluster.arrive.{order}.aligned", "barrier.cluster.wait.acquire.aligned"


def is_new_sum(product: UOp) -> bool:
    """True if a product is added to zeros."""
    total = product.src[2]
    lanes = total.src if total.op is Op.VECTORIZE else (total,)
    return all(lane.op is Op.CONST and lane.arg == 0 for lane in lanes)


def is_turned(operand: UOp) -> bool:
    """True if an operand that a unit reads by itself lies in rows across k."""
    return operand.op is Op.MATRIX_LOAD and bool(operand.arg.is_turned)


WARPGROUP_STEPS: Final = {
    8: (("k4",), ("k1", "k2")),
    16: (("k2", "k4"), ("k1", "k8")),
    32: (("k4", "k8"), ("k1", "k2", "k16")),
}
"""By k, which is 32 bytes of elements, the bits of steps of lanes and of their elements."""


def warpgroup_unit(a: DType, n: int, out: DType = dtypes.float32) -> MatrixUnit:
    """The product of 64 rows and n columns, 32 bytes of steps at a time.

    Where lanes hold sums: PTX ISA 9.0, section 9.7.15.5.1.1, "Register Fragments". Lanes hold no
    operands; their maps name each element once.
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
    """The product of 64 rows, which lanes hold as they hold sums, and 64 columns and steps.

    So the sums of one product are an operand of the next one.
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
"""By the name of the unit; sm_90a alone has them."""


FUNCTIONS: Final[Mapping[str, str]] = {
    name: instruction.function for name, instruction in INSTRUCTIONS.items()
}
"""Functions of CUDA C by the name of the unit, of those that one warp has."""
TOGETHER: Final = frozenset({Op.RANGE, Op.END, Op.BARRIER})
"""Ops that end a row of products which can be begun together."""


@lru_cache(maxsize=8)
def products_begun_together(uops: tuple[UOp, ...]) -> Mapping[UOp, tuple[UOp, ...]]:
    """Products of four warps that add to one sum, the first one first, by the last of them.

    A product is begun with the next one where that alone uses its sum, before any barrier or end of
    a loop, and before the register is written that the first one adds to.
    """
    uses = Counter(source for u in uops for source in u.src)
    found: dict[UOp, tuple[UOp, ...]] = {}
    open_rows: set[UOp] = set()
    for u in uops:
        if u.op is Op.MATRIX and u.arg.name in WARPGROUP:
            before = u.src[2]
            if before in open_rows and uses[before] == 1:
                found[u] = (*found.pop(before), u)
                open_rows.discard(before)
            else:
                found[u] = (u,)
            open_rows.add(u)
        elif u.op in TOGETHER:
            open_rows.clear()
        elif u.op is Op.STORE:
            written = pointer_of(u.src[0])
            open_rows -= {last for last in open_rows if is_sum_in(found[last][0].src[2], written)}
    return found


def is_sum_in(value: UOp, memory: UOp) -> bool:
    """True if a value is loaded from some memory."""
    return value.op is Op.LOAD and pointer_of(value.src[0]) is memory


@lru_cache(maxsize=8)
def registers_of_sums(uops: tuple[UOp, ...]) -> Mapping[UOp, UOp]:
    """By the last product of a row the register in which its sum alone is stored.

    Nothing else reads or writes it between the two, so that the product may be computed there.
    """
    uses = Counter(source for u in uops for source in u.src)
    found: dict[UOp, UOp] = {}
    waiting: set[UOp] = set()
    touched: dict[UOp, set[UOp]] = {}
    for u in uops:
        if u.op is Op.MATRIX and uses[u] == 1:
            waiting.add(u)
            touched[u] = set()
        elif u.op in (Op.LOAD, Op.STORE):
            memory = pointer_of(u.src[0])
            value = u.src[1] if u.op is Op.STORE else u
            if memory.op is Op.DEFINE_REG and value in waiting and memory not in touched[value]:
                found[value] = memory
            waiting.discard(value)
            for product in waiting:
                touched[product].add(memory)
        elif u.op in (Op.RANGE, Op.END):
            waiting.clear()
    return found


class UnderWay(NamedTuple):
    """Products of four warps that loops leave under way while the next step begins."""

    products: frozenset[UOp]
    """The last of each row that is not waited for at its end."""
    sums: frozenset[tuple[UOp, UOp]]
    """RANGE and LOAD of what they are added to, which is not moved meanwhile."""
    groups: Mapping[UOp, int]
    """Groups that a BARRIER leaves under way."""
    ends: Mapping[UOp, tuple[tuple[UOp, UOp], ...]]
    """By the END of a loop the registers of sums that are complete behind it, and the products."""


@lru_cache(maxsize=8)
def products_under_way(uops: tuple[UOp, ...]) -> UnderWay:
    """Products that a kernel leaves under way: rows of loops whose BARRIER says that they may be.

    A row of products is not if anything but its own register gets its sum.
    """
    rows = products_begun_together(uops)
    stores = {u.src[1]: pointer_of(u.src[0]) for u in uops if u.op is Op.STORE}
    products: set[UOp] = set()
    sums: set[tuple[UOp, UOp]] = set()
    groups: dict[UOp, int] = {}
    ends: dict[UOp, tuple[tuple[UOp, UOp], ...]] = {}
    for end, own, body in loops_of(uops):
        barriers = [u for u in own if u.op is Op.BARRIER]
        found = [u for u in own if u in rows]
        if not found or not any(u.arg for u in barriers):
            continue
        uses = Counter(source for u in body for source in u.src)
        loads = [rows[u][0].src[2] for u in found]
        registers = [stores.get(u) for u in found]
        are_kept = all(
            register is not None and is_sum_in(load, register) and uses[u] == uses[load] == 1
            for u, load, register in zip(found, loads, registers, strict=True)
        )
        if are_kept:
            products |= set(found)
            sums |= {(end.src[1], load) for load in loads}
            groups |= {u: u.arg * len(found) for u in barriers if u.arg}
            ends[end] = tuple((stores[u], u) for u in found)
    return UnderWay(frozenset(products), frozenset(sums), groups, ends)


class Awaited(NamedTuple):
    """A row of products whose sum is needed."""

    product: UOp
    """The last of the row."""
    register: UOp | None
    """The register in which the sum was stored meanwhile."""
    left: int
    """Groups of products that may be under way still: those begun after it."""


@lru_cache(maxsize=8)
def products_awaited(uops: tuple[UOp, ...], are_kept: bool) -> Mapping[UOp, tuple[Awaited, ...]]:
    """By a node the rows of products that are waited for before it, but for those of a loop.

    That is the first one that uses a sum, and a barrier or the end of a loop at the latest. To
    store a sum in a register is no use of it where it `are_kept` there as it is.
    """
    rows, left = products_begun_together(uops), products_under_way(uops).products
    uses = Counter(source for u in uops for source in u.src)
    found: dict[UOp, tuple[Awaited, ...]] = {}
    begun: dict[UOp, int] = {}
    registers: dict[UOp, UOp] = {}
    count = 0
    for u in uops:
        if u.op is Op.STORE and are_kept and u.src[1] in begun and uses[u.src[1]] == 1:
            memory = pointer_of(u.src[0])
            if memory.op is Op.DEFINE_REG and memory not in registers.values():
                registers[u.src[1]] = memory
                continue
        needed = [row for row in begun if is_awaited(row, registers.get(row), u)]
        if needed:
            found[u] = tuple(
                Awaited(row, registers.pop(row, None), count - begun.pop(row)) for row in needed
            )
        if u in rows:
            count += 1
            if u not in left:
                begun[u] = count
    return found


def is_awaited(row: UOp, register: UOp | None, u: UOp) -> bool:
    """True if a node needs the sum of a row of products, or begins what it may not be under way
    in."""
    if u.op in TOGETHER or row in u.src:
        return True
    is_access = register is not None and u.op in (Op.LOAD, Op.STORE)
    return is_access and pointer_of(u.src[0]) is register


def loops_of(uops: Sequence[UOp]) -> Iterator[tuple[UOp, list[UOp], list[UOp]]]:
    """Loops of a program: each END, what is in its loop alone, and with the loops inside of it."""
    own: list[list[UOp]] = [[]]
    whole: list[list[UOp]] = [[]]
    for u in uops:
        if u.op is Op.RANGE:
            own.append([])
            whole.append([])
        elif u.op is Op.END:
            body = whole.pop()
            yield u, own.pop(), body
            whole[-1] += body
        else:
            own[-1].append(u)
            whole[-1].append(u)


def units_of(number: int, is_specific: bool = False) -> tuple[MatrixUnit, ...]:
    """The units of a compute capability, with those that no later one has if it is that itself."""
    own = [found.unit for found in WARPGROUP.values()] if is_specific and number == HOPPER else []
    return (*own, *(found.unit for found in INSTRUCTIONS.values() if found.since <= number))
