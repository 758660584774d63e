"""Turn REDUCE into loops over accumulators held in registers, and SCAN into accumulators.

Floor 3'. A REDUCE becomes: set the accumulator, run the loops adding to it, read it. Reductions
over the same loops at the same place share one pass of these loops, however many accumulators that
makes. A SCAN becomes: set the accumulator before the loop, add to it and read it in each step.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import count

from tinycore.dtype import dtypes
from tinycore.lower.loops import closer_of, numbered
from tinycore.uop.node import UOp
from tinycore.uop.op import Op, neutral_element

SHARED_PASS = 3
"""Marks the number of a loop copied for another pass over the same counters."""

Nest = tuple[tuple[UOp, ...], frozenset[UOp], int]


def loops_of(reduce: UOp) -> tuple[UOp, ...]:
    """The loops a REDUCE closes."""
    return tuple(s for s in reduce.src[1:] if s.op is Op.RANGE)


def depth_of(reduces: list[UOp]) -> dict[UOp, int]:
    """How many of the other reductions lie on the longest path below each."""
    depth: dict[UOp, int] = {}
    below: dict[UOp, int] = {}
    for node in UOp.sink(*reduces).toposort():
        under = max((below[s] for s in node.src), default=0)
        if node.op is Op.REDUCE:
            depth[node] = under
            under += 1
        below[node] = under
    return depth


def nests_of(kernel: UOp) -> dict[Nest, list[UOp]]:
    """The reductions of a kernel, those that share a pass together, inner ones first."""
    reduces = [n for n in kernel.toposort() if n.op is Op.REDUCE]
    depth = depth_of(reduces)
    nests: dict[Nest, list[UOp]] = defaultdict(list)
    for reduce in reduces:
        nests[loops_of(reduce), reduce.ranges, depth[reduce]].append(reduce)
    return dict(sorted(nests.items(), key=lambda nest: nest[0][2]))


def passes_apart(kernel: UOp) -> UOp:
    """The kernel with loops of its own for every pass, where passes run over the same counters.

    Of two such passes the inner one moves to new counters, and what is inside of it with it. No
    pass inside of it closes these counters itself, as it would have been moved before.
    """
    for number in count():
        nests = nests_of(kernel)
        owner: dict[UOp, Nest] = {}
        for nest in nests:
            taken = [owner[r] for r in nest[0] if owner.setdefault(r, nest) != nest]
            if taken:
                names = {r: numbered(r, SHARED_PASS, number) for r in taken[0][0]}
                kernel = kernel.substitute({m: m.substitute(names) for m in nests[taken[0]]})
                break
        else:
            break
    return kernel


def reduce_to_registers(kernel: UOp) -> UOp:
    """The kernel with every REDUCE turned into loops over registers."""
    kernel = passes_apart(kernel)
    done: dict[UOp, UOp] = {}
    for (loops, outside, _), members in nests_of(kernel).items():
        done |= one_pass(members, loops, outside, done)
    for scan in (n for n in kernel.toposort() if n.op is Op.SCAN):
        around = loops_around(scan.src[1], kernel)
        done[scan] = running(scan, around, len(done), done)
    return kernel.substitute(done)


def loops_around(counter: UOp, kernel: UOp) -> list[UOp]:
    """The loops that a loop over outputs is in, whether or not anything depends on them."""
    (end,) = closer_of(kernel, counter)
    inside = end.src[1 : end.src.index(counter)]
    return sorted({*end.ranges, *inside}, key=lambda r: r.arg.number)


def running(scan: UOp, around: list[UOp], number: int, done: dict[UOp, UOp]) -> UOp:
    """What the value of a SCAN becomes: an accumulator that every step of its loop adds to."""
    value, counter = scan.src
    register = UOp(Op.DEFINE_REG, scan.dtype.ptr(1, "register"), (), number)
    start = UOp(Op.AFTER, register.dtype, (register, *around)) if around else register
    neutral = UOp.const(scan.dtype, neutral_element(scan.arg, scan.dtype))
    clear = UOp(Op.STORE, dtypes.void, (register_index(start), neutral))
    inside = register_index(UOp(Op.AFTER, register.dtype, (register, clear, counter)))
    total = UOp(Op.LOAD, scan.dtype, (inside,)).alu(scan.arg, value.substitute(done))
    change = UOp(Op.STORE, dtypes.void, (inside, total))
    return UOp(
        Op.LOAD, scan.dtype, (register_index(UOp(Op.AFTER, register.dtype, (register, change))),)
    )


def one_pass(
    members: list[UOp],
    loops: tuple[UOp, ...],
    outside: frozenset[UOp],
    done: dict[UOp, UOp],
) -> dict[UOp, UOp]:
    """Reductions that share loops, each with what its value becomes."""
    order = sorted(outside, key=lambda r: r.arg.number)
    updates: list[UOp] = []
    registers: list[tuple[UOp, UOp]] = []
    for member in members:
        register = UOp(
            Op.DEFINE_REG, member.dtype.ptr(1, "register"), (), len(done) + len(registers)
        )
        start = register_index(
            UOp(Op.AFTER, register.dtype, (register, *order)) if order else register
        )
        clear = UOp(
            Op.STORE,
            dtypes.void,
            (start, UOp.const(member.dtype, neutral_element(member.arg, member.dtype))),
        )
        inside = register_index(UOp(Op.AFTER, register.dtype, (register, clear, *loops)))
        total = UOp(Op.LOAD, member.dtype, (inside,))
        for value in (s for s in member.src if s.op is not Op.RANGE):
            total = total.alu(member.arg, value.substitute(done))
        updates.append(UOp(Op.STORE, dtypes.void, (inside, total)))
        registers.append((member, register))
    body = updates[0] if len(updates) == 1 else UOp(Op.GROUP, dtypes.void, tuple(updates))
    end = UOp(Op.END, dtypes.void, (body, *loops))
    return {
        member: UOp(
            Op.LOAD, member.dtype, (register_index(UOp(Op.AFTER, register.dtype, (register, end))),)
        )
        for member, register in registers
    }


def register_index(register: UOp) -> UOp:
    """The one element of a register."""
    return UOp(Op.INDEX, register.dtype, (register, UOp.index(0)))
