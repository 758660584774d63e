"""A linear program as a list of steps over arrays, and the state they work on.

Private to the interpreter, whose header says how values are held. A `Plan` is made once per
program: one step per node, the steps of a loop's body inside the loop's own. A `Frame` is one
launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

import numpy

from tinycore.builtin.arithmetic import (
    Array,
    computed_as,
    from_storage,
    operation,
    select,
    to_storage,
)
from tinycore.dtype import DType, PointerDType, to_numpy_dtype
from tinycore.errors import DeviceError, UnsupportedError
from tinycore.render.base import pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, Op

__all__ = ["Frame", "Memory", "Plan"]

SILENT: Final = frozenset({Op.SINK, Op.BARRIER, Op.GROUP, Op.END, Op.INDEX, Op.AFTER})
"""Nodes that have no step of their own; threads run in lockstep, so a barrier has been reached by
all.
"""
DEFINITIONS: Final = frozenset(
    {Op.DEFINE_GLOBAL, Op.DEFINE_LOCAL, Op.DEFINE_REG, Op.DEFINE_VAR, Op.SPECIAL, Op.CONST}
)
"""Nodes whose value is there before the first step."""


class Memory:
    """Elements that programs load and store, `size` of them for each owner: a buffer has one owner,
    shared memory one per workgroup, and registers one per thread.
    """

    __slots__ = ("array", "base", "dtype", "label", "size")

    def __init__(
        self, array: Array, dtype: DType, size: int, label: str, base: Array | None = None
    ) -> None:
        self.array = array
        self.dtype = dtype
        self.size = size
        self.label = label
        self.base = base
        """Where the part of each thread's owner starts; None where there is one part."""

    @staticmethod
    def of_buffer(node: UOp, handle: Array, kernel: str) -> Memory:
        """The memory behind a DEFINE_GLOBAL. Raises DeviceError when the buffer is too small."""
        dtype = node.dtype
        assert isinstance(dtype, PointerDType)
        storage = to_numpy_dtype(dtype.base.scalar())
        whole = handle.nbytes // storage.itemsize
        size = dtype.size * dtype.base.count
        if size > whole:
            raise DeviceError(
                f"kernel {kernel} needs {size} elements of {dtype.base!r} in buffer {node.arg}, "
                f"which has {handle.nbytes} bytes"
            )
        array = handle[: whole * storage.itemsize].view(storage)
        return Memory(array, dtype.base.scalar(), size, f"buffer {node.arg}")


class Frame:
    """One launch: the values of all nodes, and which threads take part."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.values: list[Any] = list(plan.initial)
        self.mask: Array | None = None
        """The threads that are still inside the loops entered so far; None means all."""
        self.first_group = 0
        self.groups = 1
        self.grid = self.block = (1, 1, 1)

    def enter(
        self, first: int, groups: int, grid: tuple[int, int, int], block: tuple[int, int, int]
    ) -> None:
        """Go to a piece of the grid: `groups` workgroups from number `first` on."""
        self.first_group, self.groups, self.grid, self.block = first, groups, grid, block
        self.mask = None
        group = numpy.arange(first, first + groups)
        thread = numpy.arange(block[0] * block[1] * block[2])
        for slot, name in self.plan.specials:
            axis = int(name[-1])
            within, sizes = (group, grid) if name.startswith("grid") else (thread, block)
            stride = int(numpy.prod(sizes[:axis], dtype=numpy.int64))
            index = within // stride % sizes[axis]
            whole = (
                numpy.repeat(index, len(thread)) if within is group else numpy.tile(index, groups)
            )
            self.values[slot] = whole if sizes[axis] > 1 else numpy.zeros(1, numpy.int64)
        self._make_memories(groups, len(thread))

    def _make_memories(self, groups: int, threads: int) -> None:
        for slot, node in self.plan.memories:
            dtype = node.dtype
            assert isinstance(dtype, PointerDType)
            size = dtype.size * dtype.base.count
            owners = groups if node.op is Op.DEFINE_LOCAL else groups * threads
            array = numpy.zeros(owners * size, to_numpy_dtype(dtype.base.scalar()))
            starts = numpy.arange(owners) * size
            base = numpy.repeat(starts, threads) if node.op is Op.DEFINE_LOCAL else starts
            word = "shared memory" if node.op is Op.DEFINE_LOCAL else "register"
            label = f"{word} {node.arg}"
            self.values[slot] = Memory(array, dtype.base.scalar(), size, label, base)
        for slot in self.plan.registers:
            self.values[slot] = None

    def thread(self, position: int) -> str:
        """Which thread a position in an array over threads is."""
        per_group = self.block[0] * self.block[1] * self.block[2]
        group, inside = divmod(position, per_group)
        parts = (
            (name, coordinates(number, sizes))
            for name, number, sizes in (
                ("grid", group + self.first_group, self.grid),
                ("block", inside, self.block),
            )
            if sizes != (1, 1, 1)
        )
        return "".join(f", {name} {at}" for name, at in parts)


def coordinates(number: int, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    """The position on three axes, the first running fastest."""
    return number % sizes[0], number // sizes[0] % sizes[1], number // (sizes[0] * sizes[1])


Step = Callable[[Frame], None]


class Plan:
    """The steps of a program. Raises UnsupportedError for a node that is not linear."""

    def __init__(self, name: str, uops: tuple[UOp, ...]) -> None:
        self.name = name
        self.slots: dict[UOp, int] = {u: i for i, u in enumerate(uops)}
        self.initial: list[Any] = [initial_value(u) for u in uops]
        self.specials = [(self.slots[u], u.arg) for u in uops if u.op is Op.SPECIAL]
        self.registers = [self.slots[u] for u in uops if is_register(u)]
        """Registers of one element hold whole arrays; storing replaces the array."""
        self.memories = [
            (self.slots[u], u)
            for u in uops
            if u.op in (Op.DEFINE_LOCAL, Op.DEFINE_REG) and not is_register(u)
        ]
        self._steps = self._block(iter(uops))

    def run(self, frame: Frame) -> None:
        """Do every step for the threads of the frame."""
        for step in self._steps:
            step(frame)

    def _block(self, uops: Iterator[UOp], until: UOp | None = None) -> list[Step]:
        """The steps up to the END of a loop, or to the end of the program."""
        steps: list[Step] = []
        for u in uops:
            if u.op is Op.END and until is not None and until in u.src[1:]:
                return steps
            if u.op is Op.RANGE:
                steps.append(self._loop(u, self._block(uops, u)))
            elif u.op not in SILENT and u.op not in DEFINITIONS:
                steps.append(self._step(u))
        if until is not None:
            raise UnsupportedError(f"program {self.name} never closes the loop {until!r}")
        return steps

    def _step(self, u: UOp) -> Step:
        match u.op:
            case Op.LOAD:
                return self._load(u)
            case Op.STORE:
                return self._store(u)
            case Op.VECTORIZE:
                return self._vectorize(u)
            case Op.EXTRACT:
                return self._extract(u)
        if u.op not in ALU:
            raise UnsupportedError(f"the interpreter has no {u.op.name}: programs are linear")
        function = operation(u.op, u.dtype, u.src[0].dtype)
        target, sources = self.slots[u], [self.slots[s] for s in u.src]
        if len(sources) == 1:
            (a,) = sources

            def unary(frame: Frame) -> None:
                values = frame.values
                values[target] = function(values[a])

            return unary
        if len(sources) == 2:
            a, b = sources

            def binary(frame: Frame) -> None:
                values = frame.values
                values[target] = function(values[a], values[b])

            return binary

        def any_arity(frame: Frame) -> None:
            values = frame.values
            values[target] = function(*[values[s] for s in sources])

        return any_arity

    def _loop(self, u: UOp, body: list[Step]) -> Step:
        counter, end_slot = self.slots[u], self.slots[u.src[0]]
        kind = to_numpy_dtype(u.dtype)

        def loop(frame: Frame) -> None:
            values, outer = frame.values, frame.mask
            end = values[end_slot]
            same = len(end) == 1
            for i in range(int(end.max())):
                if not same:
                    inside = end > i if outer is None else outer & (end > i)
                    if not inside.any():
                        break
                    frame.mask = None if inside.all() else inside
                values[counter] = numpy.array([i], kind)
                for step in body:
                    step(frame)
            frame.mask = outer

        return loop

    def _vectorize(self, u: UOp) -> Step:
        target, sources = self.slots[u], [self.slots[s] for s in u.src]

        def vectorize(frame: Frame) -> None:
            lanes = [frame.values[s] for s in sources]
            columns = [x if x.ndim == 2 else x[:, None] for x in lanes]
            rows = max(len(x) for x in columns)
            wide = [numpy.broadcast_to(x, (rows, x.shape[1])) for x in columns]
            frame.values[target] = numpy.concatenate(wide, axis=1)

        return vectorize

    def _extract(self, u: UOp) -> Step:
        target, source = self.slots[u], self.slots[u.src[0]]
        lanes = u.arg[0] if len(u.arg) == 1 else list(u.arg)

        def extract(frame: Frame) -> None:
            frame.values[target] = frame.values[source][:, lanes]

        return extract

    # --- memory

    def _load(self, u: UOp) -> Step:
        index = u.src[0]
        pointer, target = self.slots[pointer_of(index)], self.slots[u]
        if is_register(pointer_of(index)):
            return self._load_register(pointer, target, pointer_of(index))
        position, gate = self.slots[index.src[1]], self._gate(index)
        other = self.slots[u.src[1]] if len(u.src) > 1 else None
        count, kind = u.dtype.count, computed_as(u.dtype)
        decoded = kind != to_numpy_dtype(u.dtype)

        def load(frame: Frame) -> None:
            values = frame.values
            memory: Memory = values[pointer]
            wanted = None if gate is None else values[gate]
            where = self._where(frame, memory, values[position], wanted, count=count, verb="reads")
            found = memory.array.take(where)
            if decoded:
                found = from_storage(found, memory.dtype)
            if wanted is not None:
                absent = values[other] if other is not None else numpy.zeros(1, kind)
                found = select(wanted, found, absent)
            values[target] = found

        return load

    def _load_register(self, pointer: int, target: int, node: UOp) -> Step:
        name = self.name

        def load(frame: Frame) -> None:
            value = frame.values[pointer]
            if value is None:
                raise DeviceError(f"kernel {name} reads register {node.arg} before it is written")
            frame.values[target] = value

        return load

    def _store(self, u: UOp) -> Step:
        index, value = u.src
        pointer, source = self.slots[pointer_of(index)], self.slots[value]
        gate = self._gate(index)
        if is_register(pointer_of(index)):
            return self._store_register(pointer, source, gate)
        position, count = self.slots[index.src[1]], value.dtype.count

        def store(frame: Frame) -> None:
            values = frame.values
            memory: Memory = values[pointer]
            wanted = None if gate is None else values[gate]
            where = self._where(frame, memory, values[position], wanted, count=count, verb="writes")
            stored = to_storage(values[source], memory.dtype)
            active = both(frame.mask, wanted)
            if active is not None:
                rows = max(len(where), len(stored), len(active))
                active = numpy.broadcast_to(active, rows)
                where, stored = rows_of(where, active), rows_of(stored, active)
            elif len(where) != len(stored):
                shape = numpy.broadcast_shapes(where.shape, stored.shape)
                where, stored = numpy.broadcast_to(where, shape), numpy.broadcast_to(stored, shape)
            memory.array[where] = stored

        return store

    def _store_register(self, pointer: int, source: int, gate: int | None) -> Step:
        def store(frame: Frame) -> None:
            values = frame.values
            value = values[source]
            active = both(frame.mask, None if gate is None else values[gate])
            if active is not None:
                before = values[pointer]
                value = select(
                    active, value, before if before is not None else numpy.zeros_like(value)
                )
            values[pointer] = value

        return store

    def _gate(self, index: UOp) -> int | None:
        return self.slots[index.src[2]] if len(index.src) > 2 else None

    def _where(
        self,
        frame: Frame,
        memory: Memory,
        index: Array,
        gate: Array | None,
        *,
        count: int,
        verb: str,
    ) -> Array:
        """Positions in a memory's array, checked for the threads that take part; others get 0."""
        active = both(frame.mask, gate)
        if active is not None:
            index = numpy.where(active, index, 0)
        # As unsigned numbers, negative ones are large: one comparison checks both bounds.
        if int(index.view(numpy.uint64).max()) > memory.size - count:
            outside = active is None or bool(active.any())
            if outside:
                self._out_of_bounds(frame, memory, index, count, verb)
        if memory.base is not None:
            index = index + memory.base
        return index if count == 1 else index[:, None] + numpy.arange(count)

    def _out_of_bounds(
        self, frame: Frame, memory: Memory, index: Array, count: int, verb: str
    ) -> NoReturn:
        wrong = (index < 0) | (index > memory.size - count)
        position = int(numpy.argmax(wrong))
        what = f"index {int(index[position])}" + (f" ({count} lanes)" if count > 1 else "")
        thread = frame.thread(position) if len(index) > 1 else ""
        raise DeviceError(
            f"kernel {self.name} {verb} {memory.label} at {what}, outside its "
            f"{memory.size} elements{thread}"
        )


def initial_value(u: UOp) -> Any:
    """The value a node has before anything runs: constants have theirs."""
    return numpy.array([u.arg], computed_as(u.dtype)) if u.op is Op.CONST else None


def is_register(u: UOp) -> bool:
    """Whether a DEFINE is a register of one element."""
    return u.op is Op.DEFINE_REG and isinstance(u.dtype, PointerDType) and u.dtype.size == 1


def both(mask: Array | None, gate: Array | None) -> Array | None:
    """The threads for which both hold; None means all."""
    if mask is None or gate is None:
        return gate if mask is None else mask
    return mask & gate


def rows_of(values: Array, active: Array) -> Array:
    """The rows of those threads that take part."""
    return numpy.broadcast_to(values, (len(active), *values.shape[1:]))[active]
