"""Register accumulators: REDUCE and SCAN become loops over accumulators.

Floor 3'. A REDUCE becomes: set the accumulator, run the loops adding to it, read it. Reductions
over the same loops at the same place share one pass over these loops, whatever the number of
accumulators. A SCAN becomes: set the accumulator before the loop, add to it and read it in each
step.

A loop that a plan marks by Part.ONLINE (`steps/chain.py`) is one pass also for a maximum and sums
that depend on it, as in online softmax: exp(s - m) == exp(s - m') * exp(m' - m), so a sum that was
taken with the maximum so far, m', is rescaled when a greater one is found (M. Milakov &
N. Gimelshein, "Online normalizer calculation for softmax", 2018). A maximum of -inf is subtracted
as 0: its steps add nothing. A NaN remains a NaN.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import count

from tinycore.lower.fragments import added
from tinycore.lower.lanes import lanes_of
from tinycore.lower.loops import (
    closer_of,
    initialized,
    loops_of,
    new_register,
    numbered,
    value_after,
    values_of,
)
from tinycore.uop.node import UOp
from tinycore.uop.op import APPROXIMATE, Op, Part, neutral_element
from tinycore.uop.proportional import LOG2_E, finite

LOOPS_WITH_VALUE = (Op.REDUCE, Op.ITERATE)
"""Ops that run loops and have a value after them."""

Nest = tuple[tuple[UOp, ...], frozenset[UOp], int]


def is_online(reduce: UOp) -> bool:
    """True if a loop of a reduction is marked as one pass."""
    return any(r.number[-1] is Part.ONLINE for r in loops_of(reduce))


def reduction_depths(kernel: UOp) -> dict[UOp, int]:
    """For each reduction of a kernel, the largest number of reductions on a path below it."""
    depth: dict[UOp, int] = {}
    below: dict[UOp, int] = {}
    for node in kernel.toposort():
        under = max((below[s] for s in node.src), default=0)
        if node.op in LOOPS_WITH_VALUE:
            depth[node] = under
            under += 1
        below[node] = under
    return depth


def nests_of(kernel: UOp) -> dict[Nest, list[UOp]]:
    """The reductions of a kernel, grouped by shared passes, inner ones first."""
    depth = reduction_depths(kernel)
    # the deepest reduction of an online pass depends on all others, so it decides where the pass is
    online = {loops_of(n): depth[n] for n in sorted(depth, key=depth.__getitem__) if is_online(n)}
    nests: dict[Nest, list[UOp]] = defaultdict(list)
    for reduce in depth:
        last = online.get(loops_of(reduce))
        place = (reduce.ranges, depth[reduce]) if last is None else (frozenset(), last)
        nests[loops_of(reduce), *place].append(reduce)
    return dict(sorted(nests.items(), key=lambda nest: nest[0][2]))


def passes_apart(kernel: UOp) -> UOp:
    """The kernel with separate loops for every pass, where passes run over the same counters.

    The inner one of two such passes moves to new counters, together with its body. No pass inside
    of it still closes the old counters: it would have been moved before.
    """
    for number in count():
        nests = nests_of(kernel)
        owner: dict[UOp, Nest] = {}
        for nest in nests:
            taken = [owner[r] for r in nest[0] if owner.setdefault(r, nest) != nest]
            if taken:
                names = {r: numbered(r, Part.SHARED_PASS, number) for r in taken[0][0]}
                kernel = kernel.substitute({m: m.substitute(names) for m in nests[taken[0]]})
                break
        else:
            break
    return kernel


def reduce_to_registers(kernel: UOp) -> UOp:
    """The kernel with every REDUCE turned into loops over registers."""
    kernel = passes_apart(kernel)
    done: dict[UOp, UOp] = {}
    for (loops, _, _), members in nests_of(kernel).items():
        done |= one_pass(members, loops, done)
    for scan in kernel.every(Op.SCAN):
        around = loops_around(scan.src[1], kernel)
        done[scan] = accumulate_scan(scan, around, len(done), done)
    return with_recurrences(kernel.substitute(done))


def with_recurrences(kernel: UOp) -> UOp:
    """The kernel with every RECUR turned into a register that each step of its loop changes.

    The change comes after what the step reads, and belongs to the body of the loop.
    """
    done: dict[UOp, UOp] = {}
    changes: dict[UOp, list[UOp]] = defaultdict(list)
    order = kernel.toposort()
    if not any(n.op is Op.RECUR for n in order):
        return kernel
    numbers = count(max((n.arg + 1 for n in order if n.op is Op.DEFINE_REG), default=0))
    for node in order:
        if node.op is Op.RECUR:
            around = loops_around(node.src[2], kernel)
            done[node], change = recurring(node, around, next(numbers), done)
            changes[node.src[2]].append(change)
        elif node.op is Op.END and not changes.keys().isdisjoint(node.src[1:]):
            body = node.src[0].substitute(done)
            more = [change for r in node.src[1:] for change in changes.get(r, ())]
            done[node] = node.with_src((UOp.group(body, *more), *node.src[1:]))
    return kernel.substitute(done)


def recurring(node: UOp, around: list[UOp], number: int, done: dict[UOp, UOp]) -> tuple[UOp, UOp]:
    """The value of a RECUR as a load from a register, and the STORE at the end of each step."""
    register = new_register(node.dtype, number)
    inside = initialized(register, first_value(node, done), around, (node.src[2],))
    value = inside.load(node.dtype)
    change = inside.store(following(node, value, done))
    return value, change


def loops_around(counter: UOp, kernel: UOp) -> list[UOp]:
    """The loops that a loop over outputs is in, whether or not anything depends on them."""
    (end,) = closer_of(kernel, counter)
    inside = end.src[1 : end.src.index(counter)]
    return sorted({*end.ranges, *inside}, key=lambda r: r.number)


def accumulate_scan(scan: UOp, around: list[UOp], number: int, done: dict[UOp, UOp]) -> UOp:
    """The value of a SCAN, as an accumulator to which every step of its loop adds."""
    value, counter = scan.src
    register = new_register(scan.dtype, number)
    inside = initialized(register, first_value(scan, done), around, (counter,))
    total = inside.load(scan.dtype).alu(scan.arg, value.substitute(done))
    return value_after(register, inside.store(total))


def one_pass(members: list[UOp], loops: tuple[UOp, ...], done: dict[UOp, UOp]) -> dict[UOp, UOp]:
    """Reductions that share loops, each with the expression of its value."""
    outside = sorted(UOp.sink(*members).ranges, key=lambda r: r.number)
    reduces = [m for m in members if m.op is Op.REDUCE]
    bodies = dict(zip(reduces, UOp.sink(*reduces).substitute(done).src, strict=True))
    register = {m: new_register(m.dtype, len(done) + n) for n, m in enumerate(members)}
    inside = {m: initialized(register[m], first_value(m, done), outside, loops) for m in members}
    so_far = {m: inside[m].load(m.dtype) for m in members}
    tops = {
        m: accumulated(body, so_far[m])
        for m, body in bodies.items()
        if m.arg is Op.MAX and is_online(m)
    }
    updates: list[UOp] = []
    for member in members:
        total, body = so_far[member], bodies.get(member)
        if body is None:
            updates.append(inside[member].store(following(member, total, done)))
        elif member not in tops:
            for top in [n for n in tops if n in member.toposort()]:
                shift, greatest = finite(tops[top]), bodies[top]
                total *= scale_of(so_far[top] - shift, body)
                body = body.substitute({greatest: shift, finite(greatest): shift})
            updates.append(inside[member].store(accumulated(body, total)))
    for top, greatest in tops.items():  # last: sums need the maximum from before the step
        memory, *place = inside[top].src
        updates.append(inside[top].with_src((memory.after(*updates), *place)).store(greatest))
    end = UOp.group(*updates).end(*loops)
    return {m: value_after(register[m], end) for m in members}


def scale_of(difference: UOp, total: UOp) -> UOp:
    """The factor of a sum: exp of a difference of maxima, by the same function as in its terms, for
    each element that a lane holds."""
    if any(n.op is Op.EXP2 and n.arg == APPROXIMATE for n in total.toposort()):
        argument = difference * difference.const_like(LOG2_E)
        scale = UOp(Op.EXP2, difference.dtype, (argument,), APPROXIMATE)
    else:
        scale = UOp(Op.EXP, difference.dtype, (difference,))
    if scale.dtype is total.dtype:
        return scale
    unit = next(n.arg for n in total.src if n.op is Op.MATRIX)
    return lanes_of(scale, unit.fragment("out").map.rows)


def first_value(node: UOp, done: dict[UOp, UOp]) -> UOp:
    """Initial value of the accumulator of a REDUCE, a SCAN or a recurrence."""
    if node.op in (Op.REDUCE, Op.SCAN):
        return UOp.const(node.dtype, neutral_element(node.arg, node.dtype))
    return node.src[0].substitute(done)


def accumulated(reduce: UOp, value: UOp) -> UOp:
    """The accumulator after one step of a REDUCE."""
    for operand in values_of(reduce):
        value = added(value, operand, reduce.arg)
    return value


def following(node: UOp, value: UOp, done: dict[UOp, UOp]) -> UOp:
    """The state after one step of a recurrence."""
    state = UOp(Op.STATE, node.dtype, (), node.arg)
    return node.src[1].substitute(done | {state: value})
