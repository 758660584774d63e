"""Loop utilities: closers of loops, numbers for new loops, accumulators of loops.

Floor 3'. A loop is named by its number, a path to which each step adds: splitting (1,) gives (1, 0)
outside and (1, 1) inside. For loops made for other purposes, a `Part` in the path names the
purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Final, NamedTuple

from tinycore.dtype import DType, PointerDType
from tinycore.errors import ArgumentError
from tinycore.render.base import pointer_of
from tinycore.uop.node import Axis, UOp
from tinycore.uop.op import CLOSERS, COMPOUND, AxisKind, Op

Number = tuple[int, ...]

THREADS: Final = (AxisKind.LANE, AxisKind.GROUP, AxisKind.BLOCK)
"""Kinds of loops that become threads of a workgroup, the fastest first: all of them see a stage."""
PLAIN_KINDS: Final = (AxisKind.LOOP, AxisKind.REDUCE)
"""Loops that nothing was decided about yet."""
WITH_LOOPS: Final = CLOSERS | {Op.ITERATE}
"""Ops that have loops among their sources, and run them."""


class Consecutive(NamedTuple):
    """One of several parts of a loop that follow one another."""

    loops: tuple[UOp, ...]
    """The loops over its steps, outermost first."""
    value: UOp
    """The counter of the whole loop in terms of these."""
    marks: Number = ()
    """End of the numbers of copies of the loops inside of it."""


def text_of(*numbers: Number) -> str:
    """Loop numbers as plans print them: `1.0 2`."""
    return " ".join(".".join(map(str, number)) for number in numbers)


def counters(kernel: UOp) -> list[UOp]:
    """Every RANGE of a kernel, by number."""
    return sorted(kernel.every(Op.RANGE), key=lambda n: n.number)


def counter_of(kernel: UOp, axis: Number) -> UOp:
    """The RANGE with an axis number. Raises ArgumentError if there is none."""
    for node in kernel.toposort():
        if node.op is Op.RANGE and node.number == axis:
            return node
    raise ArgumentError(f"the kernel has no loop {text_of(axis)}")


def closer_of(kernel: UOp, counter: UOp) -> list[UOp]:
    """The END or the REDUCEs that close a RANGE."""
    return [n for n in kernel.toposort() if n.op in CLOSERS and counter in n.src[1:]]


def loops_of(total: UOp) -> tuple[UOp, ...]:
    """The loops that a REDUCE or an END closes, the outermost first."""
    return tuple([s for s in total.src[1:] if s.op is Op.RANGE])


def values_of(total: UOp) -> list[UOp]:
    """The operands that a REDUCE folds in each step, or the stores of an END."""
    return [s for s in total.src if s.op is not Op.RANGE]


def numbered(counter: UOp, *marks: int) -> UOp:
    """A RANGE like this one under a longer number, for a part or a copy of its loop."""
    number, kind = counter.arg
    return counter.replace(arg=Axis((*number, *marks), kind))


def with_other_loops(
    kernel: UOp, loops: Mapping[UOp, tuple[UOp, ...]], places: Mapping[UOp, UOp]
) -> UOp:
    """The kernel with other loops in place of some, and the old counters in terms of the new.

    What closed an old loop closes those in its place; an END of none is its body.
    """
    done = dict(places)
    changed, get = done.keys(), done.get
    for node in kernel.toposort():
        src = node.src
        if changed.isdisjoint(src) or node in done:
            continue
        body, *others = map(get, src, src)
        if node.op in CLOSERS:
            pairs = zip(src[1:], others, strict=True)
            others = [loop for old, new in pairs for loop in loops.get(old, (new,))]
        is_open = node.op is Op.END and not others
        done[node] = body if is_open else node.with_src((body, *others))
    return get(kernel, kernel)


def peeled(closer: UOp, counter: UOp, parts: Iterable[Consecutive]) -> UOp:
    """An END or REDUCE over consecutive parts of a loop, each with a body of its own."""
    place = closer.src.index(counter) if closer.op is Op.END else 1
    around = closer.src[1:place]
    own = [r for r in closer.src[place:] if r is not counter]
    inside, done = loops_within(closer, around, counter), list[UOp]()
    for loops, value, marks in parts:
        # A loop is closed once: those inside of each part have numbers of their own.
        copies = {r: numbered(r, *marks) for r in inside}
        body = closer.src[0].substitute({**copies, counter: value})
        inner = [copies[r] for r in own]
        order = (*inner, *loops) if closer.op is Op.REDUCE else (*loops, *inner)
        done.append(closer.with_src((body, *order)))
    if closer.op is Op.REDUCE:
        return reduce(lambda a, b: a.alu(closer.arg, b), done)
    group = UOp.group(*done)
    return closer.with_src((group, *around)) if around else group


def loops_within(closer: UOp, around: tuple[UOp, ...], counter: UOp) -> list[UOp]:
    """The loops that run within each step of `counter`.

    Without loops that compute the same in every step, such as those that fill an array for all
    steps.
    """
    anew = {r for r in loops_of(closer) if r not in around}
    for node in reversed(closer.toposort()[:-1]):
        if node.op in WITH_LOOPS and any(not anew.isdisjoint(s.ranges) for s in node.src):
            anew.update(loops_of(node))
    return sorted(anew - {counter}, key=lambda r: r.number)


def overwrites_what_it_reads(end: UOp) -> bool:
    """True if an END's loops also load from the memory that they store to."""
    loaded = {pointer_of(n.src[0]) for n in end.every(Op.LOAD)}
    return any(pointer_of(n.src[0]) in loaded for n in stores_of(end))


def stores_of(end: UOp) -> list[UOp]:
    """The STOREs that an END closes over, other than those that fill memory its values read."""
    below = end.toposort(lambda n: n.op in COMPOUND)
    return [n for n in below if n.op is Op.STORE]


def arrays_of(kernel: UOp) -> list[UOp]:
    """Arrays in shared memory or scratch that a kernel has; the next one is numbered by these."""
    return kernel.every(Op.DEFINE_LOCAL)


def fills_of(kernel: UOp) -> list[UOp]:
    """Shared memory behind its fill, wherever that is in a kernel or below a node."""
    return [n for n in kernel.toposort() if is_fill(n)]


def is_fill(node: UOp) -> bool:
    """True if a node is shared memory behind its fill."""
    if node.op is not Op.AFTER or node.src[0].op is not Op.DEFINE_LOCAL:
        return False
    end = node.src[1]
    return end.op is Op.END and [pointer_of(n.src[0]) for n in stores_of(end)] == [node.src[0]]


def threads_of(kernel: UOp) -> list[UOp]:
    """The loops that become threads of a workgroup, the fastest first."""
    found = [n for n in kernel.every(Op.RANGE) if n.kind in THREADS]
    found.sort(key=lambda n: n.number, reverse=True)
    return sorted(found, key=lambda n: THREADS.index(n.kind))


def new_register(dtype: DType, number: int) -> UOp:
    """The register of an accumulator."""
    return UOp(Op.DEFINE_REG, dtype.ptr(1, "register"), (), number)


def register_index(register: UOp) -> UOp:
    """The one element of a register."""
    return register.at(UOp.index(0))


def initialized(register: UOp, value: UOp, around: Sequence[UOp], loops: Sequence[UOp]) -> UOp:
    """The element of an accumulator inside of some loops, which has a value in front of them.

    It gets that value in every step of the loops `around` them.
    """
    before = register.after(*around)
    start = register_index(before).store(value)
    return register_index(register.after(start, *loops))


def value_after(register: UOp, end: UOp) -> UOp:
    """The value of an accumulator after the loops, or the STORE, that change it."""
    assert isinstance(register.dtype, PointerDType)
    after = register.after(end)
    return register_index(after).load(register.dtype.base)
