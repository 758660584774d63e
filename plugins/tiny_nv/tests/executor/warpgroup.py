"""wgmma: products of four warps, whose operands lie in shared memory, and which are under way.

PTX ISA 9.0, section 9.7.15. Registers that a product under way writes hold nothing of use until its
group is waited for, and nothing may be copied to what it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy
from emulation.faults import ConvergenceFault, RaceFault, SyntaxFault

from executor.bulk import swizzled
from executor.matrix import LANES, as_registers, as_values, parts_of
from executor.registers import Array, State, Step, Who, reader, writer
from executor.syntax import Immediate, Instruction


@dataclass(frozen=True)
class MatrixDescriptor:
    """A matrix in shared memory as wgmma is told of it."""

    address: int
    leading: int
    stride: int
    swizzle: int

    @classmethod
    def decode(cls, bits: int) -> MatrixDescriptor:
        """From its 64 bits."""
        return cls(
            (bits & 0x3FFF) << 4,
            (bits >> 16 & 0x3FFF) << 4,
            (bits >> 32 & 0x3FFF) << 4,
            {0: 0, 1: 3, 2: 2, 3: 1}[bits >> 62 & 3],
        )

    def places_across(self, rows: int, steps: int, size: int) -> Array:
        """Addresses of each byte of steps along K, of elements that lie in rows across K.

        A row has as many bytes as are swizzled; `stride` leads from 8 steps to the next 8, and
        `leading` from the rows that lie together to the next.
        """
        if self.swizzle == 0:
            raise SyntaxFault("rows across K without a swizzle are not supported")
        span = 16 << self.swizzle
        row, byte = numpy.arange(rows)[:, None] * size, numpy.arange(steps * size)[None]
        step = byte // size
        base = row // span * self.leading + step // 8 * self.stride
        plain = self.address + base + step % 8 * span + row % span + byte % size
        return swizzled(plain, self.swizzle)

    def places(self, rows: int, row_bytes: int) -> Array:
        """Addresses of each byte of rows along K; a core matrix is 8 rows of 16 bytes.

        With a swizzle of 32, 64 or 128 bytes a row of that many bytes is contiguous and `stride`
        leads from 8 rows to the next 8; without one each core matrix of 128 bytes is, and `leading`
        goes from one to the next along K.
        """
        row, column = numpy.arange(rows)[:, None], numpy.arange(row_bytes)[None]
        if self.swizzle == 0:
            base = row // 8 * self.stride + column // 16 * self.leading
            return self.address + base + row % 8 * 16 + column % 16
        span = 16 << self.swizzle
        base = row // 8 * self.stride + column // span * self.leading
        return swizzled(self.address + base + row % 8 * span + column % span, self.swizzle)


WGMMA_K: Final = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}
"""Depth of one wgmma by the type of A."""


UNFINISHED: Final = 0x7FDEAD11
"""Bits of a register that a product under way writes: NaN."""


@dataclass
class Product:
    """A product under way: registers that it writes, what they will hold, and places it reads."""

    registers: tuple[str, ...]
    places: Array
    finish: Callable[[], None]
    values: Array


@dataclass
class Products:
    """The products under way of one warpgroup: those not committed, and groups, oldest first."""

    open: list[Product] = field(default_factory=list)
    groups: list[list[Product]] = field(default_factory=list)

    def under_way(self) -> list[Product]:
        """Every product, the oldest first."""
        return [product for group in (*self.groups, self.open) for product in group]

    def wait(self, left: int) -> None:
        """The products of all groups but the last ones are complete."""
        while len(self.groups) > left:
            done = self.groups.pop(0)
            later = {name for product in self.under_way() for name in product.registers}
            for product in done:
                if later.isdisjoint(product.registers):
                    product.finish()


def warpgroups(state: State, who: Who) -> list[int]:
    """First threads of the warpgroups that execute. Raises ConvergenceFault for parts of one."""
    threads = state.who(who)
    if threads.size % 128 or (threads.reshape(-1, 128)[:, 0] % 128).any():
        raise ConvergenceFault("wgmma is executed by a part of four warps")
    return [int(first) for first in threads.reshape(-1, 128)[:, 0]]


def wgmma_step(instruction: Instruction) -> Step:
    """wgmma.mma_async and its fence, commit_group and wait_group."""
    action = instruction.modifiers[0]
    if action == "fence":
        return lambda state, who: None
    if action == "commit_group":

        def commit(state: State, who: Who) -> None:
            for first in warpgroups(state, who):
                found = state.products.setdefault(first, Products())
                found.groups.append(found.open)
                found.open = []

        return commit
    if action == "wait_group":
        (left,) = instruction.operands
        if not isinstance(left, Immediate):
            raise SyntaxFault(f"{instruction}: the number of groups is an immediate")
        most = int(left.value)

        def wait(state: State, who: Who) -> None:
            for first in warpgroups(state, who):
                state.products.setdefault(first, Products()).wait(most)

        return wait
    if instruction.modifiers[0] != "mma_async" or "sp" in instruction.modifiers:
        raise SyntaxFault(f"{instruction}: not supported")
    return product_step(instruction)


def product_step(instruction: Instruction) -> Step:
    """wgmma.mma_async.sync.aligned.m64nNkK.d.a.b d, a, b, scale-d, scale-a, scale-b{, trans}."""
    line = instruction.line
    shape = next(m for m in instruction.modifiers if m.startswith("m64n"))
    n, k = (int(x) for x in shape[4:].split("k"))
    d_kind, a_kind, b_kind = instruction.types[:3]
    if WGMMA_K.get(a_kind) != k:
        raise SyntaxFault(f"{instruction}: this shape of .{a_kind} is not supported")
    target, a, b, scale, *rest = instruction.operands
    in_registers = len(parts_of(a)) > 1
    factors = [x.value for x in rest if isinstance(x, Immediate)]
    told = [bool(x) for x in factors[2:]]
    if told and len(told) != 2 - in_registers:
        raise SyntaxFault(f"{instruction}: the operands in shared memory alone lie across K or not")
    across = ([False] * (2 - len(told)) + told) if told else [False, False]
    if any(across) and a_kind not in ("f16", "bf16"):
        raise SyntaxFault(f"{instruction}: only operands of 16 bits lie across K")
    signs = [int(x) for x in factors[:2]] or [1, 1]
    d_parts, a_parts = parts_of(target), parts_of(a)
    reads_d = [reader(p, "b32", line) for p in d_parts]
    reads_a = [reader(p, "b32" if in_registers else "b64", line) for p in a_parts]
    read_b, read_scale = reader(b, "b64", line), reader(scale, "pred", line)
    writes = [writer(p, "b32", line) for p in d_parts]
    width = k * {"tf32": 4}.get(a_kind, 2 if k == 16 else 1)

    def matrix(
        state: State, thread: int, bits: int, rows: int, kind: str, is_across: bool
    ) -> tuple[Array, Array]:
        found = MatrixDescriptor.decode(bits)
        size = width // k
        places = found.places_across(rows, k, size) if is_across else found.places(rows, width)
        state.shared.places(numpy.array([thread]), numpy.array([places.min()]), 1, "wgmma read")
        state.shared.places(numpy.array([thread]), numpy.array([places.max()]), 1, "wgmma read")
        state.shared.bulk_reads(thread, places.ravel())
        note_operand(state, thread, places)
        base = thread // state.block_threads * state.shared.size
        data = numpy.ascontiguousarray(state.shared.data[base + places])
        values = as_values([data.view(numpy.uint32)[:, i] for i in range(width // 4)], kind)
        return values, base + places.ravel()

    names = tuple(str(part) for part in d_parts)

    def sums(state: State, first: int, found: Products) -> Array:
        """Sums that the product adds to: the last one's, where that writes the same registers."""
        of_these = [p for p in found.under_way() if not set(names).isdisjoint(p.registers)]
        if any(p.registers != names for p in of_these):
            raise RaceFault(f"{instruction}: products under way write some of its registers")
        if of_these:
            return of_these[-1].values
        who = numpy.arange(first, first + 128)
        return as_values([r(state, who) for r in reads_d], d_kind).reshape(128, -1)

    def step(state: State, who: Who) -> None:
        rows, columns = accumulator(n)
        keeps = read_scale(state, who)
        descriptors = read_b(state, who)
        held_a = [r(state, who) for r in reads_a]
        for group, first in enumerate(warpgroups(state, who)):
            at = group * 128
            found = state.products.setdefault(first, Products())
            old = sums(state, first, found)
            right, places = matrix(state, first, int(descriptors[at]), n, b_kind, across[1])
            if in_registers:
                values = as_values([x[at : at + 128] for x in held_a], a_kind)
                left = numpy.zeros((64, k), values.dtype)
                left[fragment_rows(k, width)] = values
            else:
                left, more = matrix(state, first, int(held_a[0][at]), 64, a_kind, across[0])
                places = numpy.concatenate([places, more])
            product = signs[0] * left @ (signs[1] * right).T
            result = product[rows, columns] + numpy.where(keeps[at], old, 0)
            found.open.append(begun(state, first, result, places))

    def begun(state: State, first: int, result: Array, places: Array) -> Product:
        """A product under way, whose registers hold nothing that can be used."""
        members = numpy.arange(first, first + 128)

        held = as_registers(result, d_kind)

        def finish() -> None:
            for write, value in zip(writes, held, strict=True):
                write(state, members, value)

        for write in writes:
            write(state, members, numpy.full(128, UNFINISHED, numpy.uint32))
        return Product(names, places, finish, as_values(held, d_kind))

    return step


def note_operand(state: State, thread: int, places: Array) -> None:
    """Raise RaceFault where a unit reads what others stored and it cannot have seen."""
    block, size = thread // state.block_threads, state.shared.granule
    members = slice(block * state.block_threads, (block + 1) * state.block_threads)
    if state.exposed[members].any():
        number = int(numpy.flatnonzero(state.exposed[members])[0])
        raise RaceFault(
            f"a matrix unit reads shared memory and thread {number} has stored to it since its "
            "last fence.proxy.async"
        )
    granules = numpy.flatnonzero(numpy.bincount(places.ravel() // size))
    first = granules * size + block * state.shared.size
    state.shared.note_read(numpy.full(first.size, thread), first, size)


def accumulator(n: int) -> tuple[Array, Array]:
    """Row and column of each element of D that a thread of a warpgroup holds."""
    thread, element = numpy.arange(128)[:, None], numpy.arange(n // 2)[None]
    rows = thread // 32 * 16 + thread % 32 // 4 + element // 2 % 2 * 8
    columns = element // 4 * 8 + thread % 4 * 2 + element % 2
    return rows, numpy.broadcast_to(columns, rows.shape)


def fragment_rows(k: int, width: int) -> tuple[Array, Array]:
    """Row and column of each element of A that a thread of a warpgroup holds in registers."""
    per = 4 * k // width
    warp, lane = numpy.arange(128) // 32, numpy.tile(LANES, 4)
    elements = numpy.arange(4 * per)
    register, within = elements // per, elements % per
    rows = warp[:, None] * 16 + lane[:, None] // 4 + 8 * (register % 2)[None]
    columns = lane[:, None] % 4 * per + within[None] + (register // 2 * 4 * per)[None]
    return rows, numpy.broadcast_to(columns, rows.shape)
