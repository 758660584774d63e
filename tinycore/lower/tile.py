"""The tile language: how the loops of a kernel are cut, ordered and mapped to the device.

Floor 3'. A plan is a tuple of steps; each names loops by their axis number, a path that grows with
every split: splitting (1,) gives (1, 0) outside and (1, 1) inside. Steps change loops and never
values, so a plan that is legal is right; what it costs is the business of `cost.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Final

from tinycore.dtype import dtypes
from tinycore.lower.guard import gate_stores, gate_sums
from tinycore.lower.hold import Hold, hold
from tinycore.lower.join import loops_of, values_of
from tinycore.lower.loops import Number, closer_of, counter_of, numbered
from tinycore.lower.pair import Pair, pair
from tinycore.lower.stage import Stage, stage
from tinycore.render.base import pointer_of
from tinycore.uop.node import Axis, UOp
from tinycore.uop.op import CLOSERS, COMPOUND, AxisKind, Op, Part
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

OUTER: Final = 0
INNER: Final = 1
REST: Final = 2
WITH_LOOPS: Final = CLOSERS | {Op.ITERATE}
"""Ops that have loops among their sources, and run them."""


@dataclass(frozen=True)
class Split:
    """Cut a loop into steps of `by`: (axis, 0) counts the steps, (axis, 1) within a step.

    Where `by` does not divide the extent of an output loop, the last step starts early and computes
    some elements twice; that is sound unless the kernel overwrites what it reads. In that case,
    and in a reduction, the rest becomes a loop of its own, (axis, 2).
    """

    axis: Number
    by: int


@dataclass(frozen=True)
class Assign:
    """Give a loop its kind: written out, lanes of a vector, shared among threads, ..."""

    axis: Number
    kind: AxisKind


@dataclass(frozen=True)
class Reorder:
    """Put loops in this order, outermost first. Loops not named keep their place inside."""

    axes: tuple[Number, ...]


@dataclass(frozen=True)
class Merge:
    """Make one loop of two, the inner right inside the outer; it keeps the number of `outer`."""

    outer: Number
    inner: Number


@dataclass(frozen=True)
class Peel:
    """Cut a loop into loops of their own at some steps: (axis, 0), (axis, 1), ... in order.

    A gate that compares the counter with one of these steps is known in each part.
    """

    axis: Number
    at: tuple[int, ...]


@dataclass(frozen=True)
class Cover:
    """Cut a loop into steps of `by`, as Split does, that together may pass its end.

    Steps past the end read what the last one reads, and store nothing or add nothing. All steps are
    alike, as threads of a grid need it, and none is done twice.
    """

    axis: Number
    by: int


@dataclass(frozen=True)
class Overlap:
    """Cut a reduced loop into steps of `by`, as Split does, with as many in what is left of it.

    That, (axis, 2), begins early, and what was folded before is left out of it: so the rest of a
    row can have as many lanes as the row.
    """

    axis: Number
    by: int


Step = Split | Assign | Reorder | Merge | Peel | Cover | Overlap | Stage | Hold | Pair
Plan = tuple[Step, ...]


def apply_plan(kernel: UOp, plan: Iterable[Step]) -> UOp:
    """The kernel with every step of the plan done."""
    for step in plan:
        match step:
            case Split(axis, by):
                kernel = split(kernel, axis, by)
            case Assign(axis, kind):
                counter = counter_of(kernel, axis)
                kernel = kernel.substitute({counter: counter.replace(arg=Axis(axis, kind))})
            case Reorder(axes):
                kernel = reorder(kernel, axes)
            case Merge(outer, inner):
                kernel = merge(kernel, outer, inner)
            case Peel(axis, at):
                kernel = peel(kernel, axis, at)
            case Cover(axis, by):
                kernel = cover(kernel, axis, by)
            case Overlap(axis, by):
                kernel = overlap(kernel, axis, by)
            case Pair(axis):
                kernel = pair(split(kernel, axis, 2), (*axis, INNER))
            case Hold():
                kernel = hold(kernel, step)
            case Stage():
                kernel = stage(rewrite(kernel, simplify, name="simplify before a stage"), step)
    return rewrite(kernel, simplify, name="simplify tiles")


def split(kernel: UOp, axis: Number, by: int) -> UOp:
    """One Split."""
    counter = counter_of(kernel, axis)
    extent = counter.extent
    if extent % by == 0:
        return replaced(kernel, counter, *parts(counter, extent // by, by))
    if counter.arg.kind is AxisKind.REDUCE:
        return split_with_rest(kernel, counter, by)
    (end,) = closer_of(kernel, counter)
    if not overwrites_what_it_reads(end):
        outer, inner, _ = parts(counter, -(-extent // by), by)
        start = (outer * by).minimum(extent - by)
        return replaced(kernel, counter, outer, inner, start + inner)
    return split_with_rest(kernel, counter, by)


def cover(kernel: UOp, axis: Number, by: int) -> UOp:
    """One Cover."""
    counter = counter_of(kernel, axis)
    extent = counter.extent
    outer, inner, value = parts(counter, -(-extent // by), by)
    if extent % by == 0:
        return replaced(kernel, counter, outer, inner, value)
    guarded = gate_sums if counter.arg.kind is AxisKind.REDUCE else gate_stores
    kernel = guarded(kernel, value < extent, counter)
    return replaced(kernel, counter, outer, inner, value.minimum(extent - 1))


def overlap(kernel: UOp, axis: Number, by: int) -> UOp:
    """One Overlap."""
    left = counter_of(kernel, axis).extent % by
    kernel = split(kernel, axis, by)
    if not left:
        return kernel
    rest = counter_of(kernel, (*axis, REST))
    longer = UOp.range(by, *rest.arg)
    kernel = gate_sums(kernel, longer >= by - left, rest)
    swapped = {c: closing(c, {rest: (longer,)}) for c in closer_of(kernel, rest)}
    return substitute_once(kernel, swapped).substitute({rest: longer - (by - left)})


def parts(counter: UOp, steps: int, by: int) -> tuple[UOp, UOp, UOp]:
    """The outer and the inner counter of a split, and the old counter in terms of them."""
    number, kind = counter.arg
    outer = UOp.range(steps, (*number, OUTER), kind)
    inner = UOp.range(by, (*number, INNER), kind)
    return outer, inner, outer * by + inner


def replaced(kernel: UOp, counter: UOp, outer: UOp, inner: UOp, value: UOp) -> UOp:
    """The kernel with `counter` replaced by two loops that together give `value`."""
    swapped = {c: closing(c, {counter: (outer, inner)}) for c in closer_of(kernel, counter)}
    kernel = substitute_once(kernel, swapped)
    return kernel.substitute({counter: value})


def closing(node: UOp, exchange: dict[UOp, tuple[UOp, ...]]) -> UOp:
    """An END or REDUCE whose ranges are exchanged for others; its body is left alone."""
    ranges = [new for r in node.src[1:] for new in exchange.get(r, (r,))]
    return node.with_src((node.src[0], *ranges))


def substitute_once(kernel: UOp, replacements: dict[UOp, UOp]) -> UOp:
    """Replace nodes from the inside out, so that one replaced node may contain another."""
    done: dict[UOp, UOp] = {}
    changed, get = done.keys(), done.get
    for node in kernel.toposort():
        if (new := replacements.get(node)) is not None:
            done[node] = new.with_src((get(node.src[0], node.src[0]), *new.src[1:]))
        elif not changed.isdisjoint(node.src):
            done[node] = node.with_src(tuple(map(get, node.src, node.src)))
    return get(kernel, kernel)


def split_with_rest(kernel: UOp, counter: UOp, by: int) -> UOp:
    """A split whose rest is a second, shorter loop over a copy of the body."""
    replacements = {c: with_rest(c, counter, by) for c in closer_of(kernel, counter)}
    return kernel.substitute(replacements)


def with_rest(closer: UOp, counter: UOp, by: int) -> UOp:
    """The main loop over whole steps, and the loop over the rest."""
    extent = counter.extent
    steps = extent // by
    outer, inner, value = parts(counter, steps, by)
    number, kind = counter.arg
    rest = UOp.range(extent - steps * by, (*number, REST), kind)
    place = closer.src.index(counter) if closer.op is Op.END else 1
    around = closer.src[1:place]
    own = tuple(r for r in closer.src[place:] if r is not counter)
    copies = {r: numbered(r, Part.TAIL_COPY) for r in inside(closer, around, counter)}
    main = closer.src[0].substitute({counter: value})
    copy = closer.src[0].substitute(copies | {counter: rest + steps * by})
    copied = tuple(copies[r] for r in own)
    if closer.op is Op.REDUCE:
        whole = closer.with_src((main, *own, outer, inner))
        return whole.alu(closer.arg, closer.with_src((copy, *copied, rest)))
    first = UOp(Op.END, dtypes.void, (main, outer, inner, *own))
    second = UOp(Op.END, dtypes.void, (copy, rest, *copied))
    both = UOp(Op.GROUP, dtypes.void, (first, second))
    return closer.with_src((both, *around)) if around else both


def peel(kernel: UOp, axis: Number, at: tuple[int, ...]) -> UOp:
    """One Peel: the body once for each part, the loops inside of it copied."""
    counter = counter_of(kernel, axis)
    replacements = {
        c: peeled(c, counter, (0, *at, counter.extent)) for c in closer_of(kernel, counter)
    }
    return kernel.substitute(replacements)


def peeled(closer: UOp, counter: UOp, edges: tuple[int, ...]) -> UOp:
    """An END or a REDUCE over the parts of a loop, one after the other."""
    number, kind = counter.arg
    place = closer.src.index(counter) if closer.op is Op.END else 1
    around = closer.src[1:place]
    own = tuple(r for r in closer.src[place:] if r is not counter)
    found = []
    for part, (start, stop) in enumerate(itertools.pairwise(edges)):
        here = UOp.range(stop - start, (*number, part), kind)
        copies = {r: numbered(r, part) for r in inside(closer, around, counter)}
        body = closer.src[0].substitute(copies | {counter: here + start})
        loops = (
            (*[copies[r] for r in own], here)
            if closer.op is Op.REDUCE
            else (here, *[copies[r] for r in own])
        )
        found.append(UOp(closer.op, closer.dtype, (body, *loops), closer.arg))
    if closer.op is Op.REDUCE:
        return reduce(lambda a, b: a.alu(closer.arg, b), found)
    group = UOp(Op.GROUP, dtypes.void, tuple(found))
    return closer.with_src((group, *around)) if around else group


def inside(closer: UOp, around: tuple[UOp, ...], counter: UOp) -> list[UOp]:
    """The loops that are run anew within each step of `counter`.

    Not those that give the same in every step, such as what fills an array that all steps read.
    """
    anew = {r for r in closer.src[1:] if r.op is Op.RANGE and r not in around}
    for node in reversed(closer.toposort()[:-1]):
        if node.op in WITH_LOOPS and any(not anew.isdisjoint(s.ranges) for s in node.src):
            anew.update(r for r in node.src[1:] if r.op is Op.RANGE)
    return sorted(anew - {counter}, key=lambda r: r.arg.number)


def overwrites_what_it_reads(end: UOp) -> bool:
    """Whether the memory that the loops of an END store to is also loaded from inside of them."""
    loaded = {pointer_of(n.src[0]) for n in end.toposort() if n.op is Op.LOAD}
    return any(pointer_of(n.src[0]) in loaded for n in stores_of(end))


def stores_of(end: UOp) -> list[UOp]:
    """The STOREs that an END closes over, and not those that fill what its values read."""
    below = end.toposort(lambda n: n.op in COMPOUND)
    return [n for n in below if n.op is Op.STORE]


def reorder(kernel: UOp, axes: tuple[Number, ...]) -> UOp:
    """One Reorder, on everything that closes one of the loops."""
    replacements = {}
    for closer in kernel.toposort():
        if closer.op in CLOSERS:
            loops = loops_of(closer)
            by_number = {r.arg.number: r for r in loops}
            front = [by_number[a] for a in axes if a in by_number]
            back = [r for r in loops if r not in front]
            replacements[closer] = closer.with_src((*values_of(closer), *front, *back))
    return substitute_once(kernel, replacements)


def merge(kernel: UOp, outer_axis: Number, inner_axis: Number) -> UOp:
    """One Merge: the merged counter replaces `outer * extent(inner) + inner` wherever it stands."""
    outer, inner = counter_of(kernel, outer_axis), counter_of(kernel, inner_axis)
    size = inner.extent
    merged = UOp.range(outer.extent * size, outer_axis, outer.arg.kind)
    exchange: dict[UOp, tuple[UOp, ...]] = {outer: (merged,), inner: ()}
    kernel = substitute_once(kernel, {c: closing(c, exchange) for c in closer_of(kernel, outer)})
    kernel = kernel.substitute({outer: merged // size, inner: merged % size})
    return rewrite(kernel, simplify, name="simplify merged loops")
