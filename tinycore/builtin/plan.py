"""A linear program as a list of steps over arrays.

Private to the interpreter, whose header says how values are held. A `Plan` is made once per
program: one step per node, the steps of a loop's body inside the loop's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import numpy

from tinycore.builtin.access import Access, is_window
from tinycore.builtin.arithmetic import (
    Array,
    computed_as,
    fold_values,
    meaning_of,
    operation,
)
from tinycore.builtin.frame import Axes, Frame, Memory, both, boxes
from tinycore.builtin.image import Pixel, load_pixel, store_pixel
from tinycore.builtin.matrix import matrix_step, shuffle_step
from tinycore.builtin.nest import (
    ACCESSES,
    DEFINITIONS,
    Fold,
    Loop,
    is_register,
    nest_of,
)
from tinycore.builtin.shared import Accesses
from tinycore.dtype import to_numpy_dtype
from tinycore.errors import DeviceError, UnsupportedError
from tinycore.render.base import LATE, LinearKernel, pointer_of
from tinycore.uop.evaluate import round_to
from tinycore.uop.host_bytes import decode, to_storage
from tinycore.uop.instruction import Effect, reads_memory
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, COMPOUND, Op

__all__ = ["Plan"]

SILENT: Final = COMPOUND | {Op.INDEX, Op.AFTER, Op.PIXEL}
"""Nodes without a step."""
STEPS_AXIS: Final = 0
"""The axis of the steps of a loop that are done at once."""
Step = Callable[[Frame], None]


class Plan:
    """The steps of a program. Raises UnsupportedError for a node that is not linear."""

    def __init__(self, name: str, uops: tuple[UOp, ...]) -> None:
        self.name = name
        self.uops = uops
        self.specials = [u for u in uops if u.op is Op.SPECIAL]
        self.variables = sorted((u for u in uops if u.op is Op.DEFINE_VAR), key=lambda u: u.arg[0])
        self.buffers = [u for u in uops if u.op is Op.DEFINE_GLOBAL]
        self._registers = [u for u in uops if is_register(u)]
        """Registers of one element hold whole arrays; storing replaces the array."""
        memories = [u for u in uops if u.op in (Op.DEFINE_LOCAL, Op.DEFINE_REG)]
        self._memories = [u for u in memories if not is_register(u)]
        self.fills_ahead = any(
            not reads_memory(u) if isinstance(u.arg, Effect) else u.op is Op.STORE and u.arg == LATE
            for u in uops
        )
        """True if accesses to shared memory are watched: those of programs that fill ahead."""
        self._cluster = max(
            [effect.groups for effect in LinearKernel(name, uops).effects], default=1
        )
        launch = {u.arg: int(u.src[0].arg) for u in self.specials}
        self.axes = Axes(launch)
        self._constants = {u: self._constant(u) for u in uops if u.op is Op.CONST}
        self._needed = needed(uops)
        self._axes_of = {u: self.axes.of.get(u.arg) for u in self.specials}
        """The axis of each SPECIAL and of each loop; None for those that go step by step."""
        self._steps = self._block(nest_of(name, uops))

    def frame(self, most_values: int, groups: Sequence[int]) -> Frame:
        """The state of a launch, without its buffers and variables; arrays of about that size."""
        return Frame(self.name, self.axes, self._constants, most_values, groups, self._cluster)

    def run(self, frame: Frame) -> None:
        """Do every step for all the threads of a launch."""
        for piece in frame.pieces():
            frame.enter(piece, self.specials)
            frame.kept, frame.watched = {}, []
            for node in self._memories:
                frame.values[node] = memory = frame.memory(node)
                if self.fills_ahead and node.op is Op.DEFINE_LOCAL:
                    memory.accesses = Accesses(memory)
                    frame.watched.append(memory.accesses)
            for node in self._registers:
                frame.values[node] = None
            for step in self._steps:
                step(frame)

    def _constant(self, u: UOp) -> Array:
        """The value of a constant, rounded to its type."""
        value = round_to(u.dtype, u.arg) if u.dtype.kind == "float" else u.arg
        return self.axes.single(value, computed_as(u.dtype))

    def _block(self, loop: Loop) -> list[Step]:
        """The steps of a loop's body."""
        folds = {fold.store: fold for fold in loop.folds or ()}
        folding = {u for fold in folds.values() for u in (fold.load, fold.combine)}
        steps: list[Step] = []
        for item in loop.body:
            if isinstance(item, Loop):
                steps.append(self._loop(item))
            elif item in folds:
                steps.append(self._fold(folds[item], loop))
            elif item in self._needed and item not in folding:
                steps.append(self._step(item))
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
            case Op.MATRIX:
                return matrix_step(u)
            case Op.SHUFFLE:
                lanes = 1 << int(u.arg).bit_length()
                return shuffle_step(u, lanes)
            case Op.INSTRUCTION if isinstance(u.arg, Effect):
                return u.arg.step(u, self._access, self.uops)
            case Op.BARRIER:
                return partial(barrier, behind=bool(u.arg))
        if u.op is Op.INSTRUCTION:
            function = meaning_of(u.arg)
        elif u.op in ALU:
            function = operation(u.op, u.dtype, u.src[0].dtype)
        else:
            raise UnsupportedError(f"the interpreter has no {u.op.name}: programs are linear")
        sources = u.src

        def compute(frame: Frame) -> None:
            values = frame.values
            values[u] = function(*[values[s] for s in sources])

        return compute

    def _vectorize(self, u: UOp) -> Step:
        def vectorize(frame: Frame) -> None:
            lanes = [frame.values[s] for s in u.src]
            shape = numpy.broadcast_shapes(*[x.shape[:-1] for x in lanes])
            wide = [numpy.broadcast_to(x, (*shape, x.shape[-1])) for x in lanes]
            frame.values[u] = numpy.concatenate(wide, axis=-1)

        return vectorize

    def _extract(self, u: UOp) -> Step:
        lanes = list(u.arg)

        def extract(frame: Frame) -> None:
            vectors = numpy.broadcast_arrays(*[frame.values[s] for s in u.src])
            frame.values[u] = numpy.concatenate(vectors, axis=-1)[..., lanes]

        return extract

    # --- loops

    def _loop(self, loop: Loop) -> Step:
        counter, is_axis = loop.counter, loop.folds is not None
        kind = to_numpy_dtype(counter.dtype)
        self._axes_of[counter] = STEPS_AXIS if is_axis else None
        body = self._block(loop)

        def run(frame: Frame) -> None:
            values, outer = frame.values, frame.mask
            ends = values[counter.src[0]]
            if (end := int(ends.max())) <= 0:
                return
            for (span,) in boxes([end], frame.at_once if is_axis else 1):
                if ends.size > 1:
                    inside = both(outer, ends > span[0])
                    if not inside.any():
                        break
                    frame.mask = None if inside.all() else inside
                frame.spans[counter] = span
                values[counter] = frame.axes.count(span, STEPS_AXIS, kind)
                for step in body:
                    step(frame)
            frame.mask = outer

        return run

    def _fold(self, fold: Fold, loop: Loop) -> Step:
        """Fold all steps of a loop into a register."""
        register = pointer_of(fold.store.src[0])
        function = operation(fold.combine.op, fold.combine.dtype, fold.combine.src[0].dtype)

        def fold_steps(frame: Frame) -> None:
            values, before = frame.values, held(frame, register)
            steps = frame.spans[loop.counter][1]
            after = fold_values(function, before, values[fold.value], steps)
            values[register] = (
                after if frame.mask is None else numpy.where(frame.mask, after, before)
            )

        return fold_steps

    # --- memory

    def _access(self, index: UOp, lanes: int, verb: str) -> Access:
        return Access(index, lanes, self._axes_of.get, verb)

    def _load(self, u: UOp) -> Step:
        index = u.src[0]
        pointer = pointer_of(index)
        if index.op is Op.PIXEL:
            return load_pixel(Pixel(index), pointer, u)
        if is_register(pointer):
            return partial(load_register, register=pointer, target=u)
        access = self._access(index, u.dtype.count, "reads")
        other = u.src[1] if len(u.src) > 1 else None
        kind = computed_as(u.dtype)

        def load(frame: Frame) -> None:
            values = frame.values
            memory: Memory = values[pointer]
            wanted = access.wanted(frame)
            window = access.window(frame, memory)
            if window is None:
                where = access.places(frame, memory, wanted)
                found = memory.read(frame, where, wanted)
            else:
                found = decode(window.copy(), memory.dtype)
            if wanted is not None:
                absent = values[other] if other is not None else kind.type(0)
                found = numpy.where(wanted, found, absent)
            values[u] = found

        return load

    def _store(self, u: UOp) -> Step:
        index, value = u.src
        pointer = pointer_of(index)
        if index.op is Op.PIXEL:
            return store_pixel(Pixel(index), pointer, value)
        if is_register(pointer):
            gate = index.src[2] if len(index.src) > 2 else None
            return self._store_register(pointer, value, gate)
        access = self._access(index, value.dtype.count, "writes")

        def store(frame: Frame) -> None:
            values = frame.values
            memory: Memory = values[pointer]
            stored = to_storage(values[value], memory.dtype)
            window = access.window(frame, memory)
            if window is not None and frame.mask is None and varies_within(stored, window):
                window[...] = stored
                return
            wanted = access.wanted(frame)
            where = access.places(frame, memory, wanted)
            write(memory, where, stored, frame.active(wanted))
            if memory.accesses is not None:
                memory.accesses.write(frame, where, wanted)

        return store

    def _store_register(self, register: UOp, source: UOp, gate: UOp | None) -> Step:
        def store(frame: Frame) -> None:
            values = frame.values
            value = values[source]
            active = frame.active(None if gate is None else values[gate])
            if active is not None:
                before = values[register]
                value = numpy.where(
                    active, value, before if before is not None else numpy.zeros_like(value)
                )
            values[register] = value

        return store


def held(frame: Frame, register: UOp) -> Array:
    """The values in a register of one element. Raises DeviceError where it has none yet."""
    values: Array | None = frame.values[register]
    if values is None:
        raise DeviceError(
            f"kernel {frame.kernel} reads register {register.arg} before it is written"
        )
    return values


def load_register(frame: Frame, register: UOp, target: UOp) -> None:
    """The step of a LOAD from a register."""
    frame.values[target] = held(frame, register)


def barrier(frame: Frame, behind: bool) -> None:
    """Reset the watched state, since threads in lockstep have all reached the barrier.

    `behind` is true where products that were begun since the barrier before may go on. Raises
    DeviceError where a part of a group, or of a cluster, has left the loop that the others are in,
    and so never comes.
    """
    if frame.mask is not None:
        block = tuple(n for name, n in frame.axes.of.items() if name.startswith("block"))
        some: Array = numpy.any(frame.mask, axis=block, keepdims=True)
        every: Array = numpy.all(frame.mask, axis=block, keepdims=True)
        if (some != every).any():
            raise DeviceError(f"kernel {frame.kernel}: a barrier is reached by a part of a group")
        if frame.cluster > 1 and any((some != of).any() for of in frame.in_cluster(some)):
            raise DeviceError(f"kernel {frame.kernel}: a barrier is reached by a part of a cluster")
    for accesses in frame.watched:
        accesses.barrier(behind)


def needed(uops: Iterable[UOp]) -> set[UOp]:
    """The nodes that have a step; positions that windows do without have none."""
    found: set[UOp] = set()
    wanted: set[UOp] = set()
    for u in reversed(list(uops)):
        if u.op in SILENT or u.op in DEFINITIONS or (u.op in ALU and u not in wanted):
            continue
        found.add(u)
        wanted.update(u.src)
        places = u.arg.places if isinstance(u.arg, Effect) else int(u.op in ACCESSES)
        for index in u.src[:places]:
            if not is_window(index):
                wanted.update(index.src[1:])
    return found


def varies_within(values: Array, window: Array) -> bool:
    """True if values vary only along axes that a window has."""
    return all(a in (1, b) for a, b in zip(values.shape, window.shape, strict=True))


def write(memory: Memory, where: Array, stored: Array, active: Array | None) -> None:
    """Store values at positions; of several threads at one position, the last one wins."""
    shape = numpy.broadcast_shapes(where.shape, stored.shape)
    if active is None:
        memory.array[numpy.broadcast_to(where, shape)] = stored
        return
    shape = numpy.broadcast_shapes(shape, active.shape)
    active = numpy.broadcast_to(active, shape)
    where, stored = numpy.broadcast_to(where, shape), numpy.broadcast_to(stored, shape)
    memory.array[where[active]] = stored[active]
