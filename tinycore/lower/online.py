"""Online softmax: a maximum and the sums that it scales, in one pass over a loop.

Floor 3'. The sum over k of exp(s_k - max s) * v_k needs the maximum before its first term, which
would take another pass. Since exp(s - m) == exp(s - m') * exp(m' - m), a sum with the running
maximum m' is rescaled when a greater one is found (M. Milakov & N. Gimelshein, "Online normalizer
calculation for softmax", 2018). A plan marks the loop by Part.ONLINE (`steps/chain.py`).

A maximum of -inf is subtracted as 0: its steps add nothing. A NaN remains a NaN.
"""

from __future__ import annotations

from itertools import count

from tinycore.lower.fragments import added
from tinycore.lower.lanes import lanes_of
from tinycore.lower.loops import initialized, new_register, value_after
from tinycore.lower.merge_reductions import values_of
from tinycore.uop.node import UOp
from tinycore.uop.op import APPROXIMATE, Op, Part, neutral_element
from tinycore.uop.proportional import LOG2_E, finite


def is_online(node: UOp) -> bool:
    """True if a REDUCE is over a loop that a plan marked as online."""
    return node.op is Op.REDUCE and any(is_marked(s) for s in node.src[1:] if s.op is Op.RANGE)


def is_marked(loop: UOp) -> bool:
    """True if a loop is one pass for several reductions."""
    return loop.arg.number[-1] is Part.ONLINE


def fold_online(kernel: UOp) -> UOp:
    """The kernel with all REDUCEs over online loops in one loop with accumulators."""
    folds = [n for n in kernel.toposort() if is_online(n)]
    if not folds:
        return kernel
    used = [n.arg for n in kernel.toposort() if n.op is Op.DEFINE_REG]
    numbers = count(max(used, default=-1) + 1)
    return kernel.substitute(one_pass(folds, numbers))


def one_pass(folds: list[UOp], numbers: count[int]) -> dict[UOp, UOp]:
    """The values of maxima, and of sums that each depend on one of them, after one common loop.

    A sum needs the maximum from before the step, so maxima are updated last.
    """
    tops = [n for n in folds if n.arg is Op.MAX]
    loops = tuple(s for s in tops[0].src[1:] if s.op is Op.RANGE)
    outside = sorted(UOp.sink(*folds).ranges, key=lambda r: r.arg.number)
    register = {n: new_register(n.dtype, next(numbers)) for n in folds}
    neutral = {n: UOp.const(n.dtype, neutral_element(n.arg, n.dtype)) for n in folds}
    within = {n: initialized(register[n], neutral[n], outside, loops) for n in folds}
    updates: list[UOp] = []
    changes: list[tuple[UOp, UOp]] = []
    for top in tops:
        # A step may fold several values: all of them before the sums are rescaled, once.
        before = after = within[top].load(top.dtype)
        for value in values_of(top):
            after = after.alu(Op.MAX, value)
        changes.append((within[top], after))
        shift = finite(after)
        sums = [n for n in folds if n.arg is Op.ADD and top in n.toposort()]
        scale = power_of(before - shift, sums)
        known = {top: shift, finite(top): shift}
        updates += [update(n, within[n], scale, known) for n in sums]
    last = [
        index.with_src((index.src[0].after(*updates), *index.src[1:])).store(value)
        for index, value in changes
    ]
    end = UOp.group(*updates, *last).end(*loops)
    return {n: value_after(r, end) for n, r in register.items()}


def power_of(difference: UOp, sums: list[UOp]) -> UOp:
    """exp of a difference of maxima, by the same function as in the terms of the sums."""
    if any(n.op is Op.EXP2 and n.arg == APPROXIMATE for n in UOp.sink(*sums).toposort()):
        argument = difference * difference.const_like(LOG2_E)
        return UOp(Op.EXP2, difference.dtype, (argument,), APPROXIMATE)
    return UOp(Op.EXP, difference.dtype, (difference,))


def update(fold: UOp, index: UOp, scale: UOp, known: dict[UOp, UOp]) -> UOp:
    """The STORE of a sum, rescaled to the running maximum, with the terms of a step added."""
    total = index.load(fold.dtype) * spread(scale, fold)
    for value in values_of(fold):
        total = added(total, value.substitute(known), fold.arg)
    return index.store(total)


def spread(scale: UOp, fold: UOp) -> UOp:
    """The scale factors of rows, broadcast to the elements that a lane holds."""
    if scale.dtype is fold.dtype:
        return scale
    unit = next(n.arg for n in values_of(fold) if n.op is Op.MATRIX)
    return lanes_of(scale, unit.fragment("out").map.rows)
