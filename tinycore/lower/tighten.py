"""Tighter loop bounds of reductions: masked steps are skipped, as in causal attention.

Floor 3'. In causal attention, a block of keys that no row of a group sees adds nothing: its scores
are all -inf, and their weights 0. The same holds for any fold whose value is its neutral element
whenever a comparison of indices is true, or is false. The trip count of such a loop becomes an
expression of the loops over groups, so that all threads of a group execute the same steps.

Products with 0 are taken as 0, as if the other factor were finite: a hidden infinity or NaN has no
effect in a step that is skipped.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from tinycore.dtype import dtypes
from tinycore.lower.dims import is_known_at_launch
from tinycore.lower.loops import closer_of
from tinycore.lower.steps.split import MASKED
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, neutral_element
from tinycore.uop.rewrite import rewrite
from tinycore.uop.sums import terms_of
from tinycore.uop.symbolic import simplify

Value = float | None
"""The value of a node under a condition, where that alone decides it."""


class Excess(NamedTuple):
    """A step changes nothing in a whole group if `start` + `stride` * step < 0."""

    start: UOp
    stride: int


def tighten_folds(kernel: UOp) -> UOp:
    """The kernel with reductions over matrix products limited to the steps that can change them."""
    nodes = kernel.toposort()
    if not any(n.op is Op.MATRIX for n in nodes):
        return kernel
    loops = [n for n in nodes if n.op is Op.RANGE and n.arg.kind is AxisKind.REDUCE]
    for loop in loops:
        found = excesses_of_folds(kernel, loop)
        # Skip steps at one end of the loop only; at its start, if there are some at both.
        are_first = any(excess.stride < 0 for excess in found)
        seen = [steps_seen(e, loop) for e in found if (e.stride < 0) is are_first]
        if seen:
            steps = functools.reduce(UOp.minimum, seen)
            kernel = tightened(kernel, loop, steps, are_first)
    return kernel


def excesses_of_folds(kernel: UOp, loop: UOp) -> list[Excess]:
    """The steps that change no fold of a loop, for each comparison that decides it."""
    folds = [n for n in closer_of(kernel, loop) if n.op is Op.REDUCE]
    groups = [n for n in kernel.toposort() if n.op is Op.RANGE and n.arg.kind is AxisKind.GRID]
    found: dict[Excess, None] = {}
    for condition, truth in conditions_of(folds, loop):
        excess = excess_of(condition, truth, loop, groups)
        known: dict[UOp, Value] = {condition: float(truth)}
        if excess is not None and all(is_neutral(fold, known) for fold in folds):
            found[excess] = None
    return list(found)


def conditions_of(folds: Sequence[UOp], loop: UOp) -> list[tuple[UOp, bool]]:
    """The comparisons of indices that vary with a loop, each as true and as false."""
    found = [
        n
        for n in UOp.sink(*folds).toposort()
        if n.op is Op.CMPLT and loop in n.ranges and n.src[0].dtype is dtypes.index
    ]
    return [(n, truth) for n in found for truth in (True, False)]


def excess_of(condition: UOp, truth: bool, counter: UOp, outside: Collection[UOp]) -> Excess | None:
    """The steps of a loop in which a comparison is `truth` for all steps of other loops.

    None if unknown. The `counter` is the loop, or an expression that counts its steps; the loops
    `outside` are those over groups or strips. The comparison a < b is true for all other loops if
    the greatest value of a - b is below 0.
    """
    less, more = condition.src
    # Steps beyond the end of a loop store and add nothing, so clamps of indices do not matter.
    unclamped = {n: n.src[0] for n in condition.toposort() if n.op is Op.MIN and n.arg == MASKED}
    difference = (less - more).substitute(unclamped) if unclamped else less - more
    bases, start = terms_of(rewrite(difference, simplify, name="simplify a difference"))
    sign, start = (1, start) if truth else (-1, -1 - start)
    first, stride, apart = UOp.index(0), 0, frozenset(outside)
    for base, times in bases.items():
        times *= sign
        if base is counter:
            stride = times
        elif not counter.ranges.isdisjoint(base.ranges):
            return None
        elif is_known_at_launch(base) or (base.ranges and base.ranges <= apart):
            first = first + base * times
        else:
            start += max(int(base.vmin) * times, int(base.vmax) * times)
    return Excess(first + start, stride) if stride else None


def is_neutral(fold: UOp, known: dict[UOp, Value]) -> bool:
    """True if a step does not change a fold, given the known values of some nodes."""
    neutral = neutral_element(fold.arg, fold.dtype)
    return all(value_of(s, known) == neutral for s in fold.src if s.op is not Op.RANGE)


def value_of(node: UOp, known: dict[UOp, Value]) -> Value:
    """The value of a node, given the known values of others; None if these do not decide it."""
    for n in node.toposort():
        if n not in known:
            known[n] = decided(n, [known[s] for s in n.src])
    return known[node]


def decided(node: UOp, values: list[Value]) -> Value:
    """The value of one node, from those of its sources."""
    match node.op:
        case Op.CONST if node.dtype.kind == "float":
            return float(node.arg)
        case Op.WHERE:
            if values[0] is not None:
                return values[1] if values[0] else values[2]
            return values[1] if values[1] == values[2] else None
        case Op.ADD if -math.inf in values:
            return -math.inf
        case Op.SUB if values[0] == -math.inf:
            return -math.inf
        case Op.MUL | Op.MATRIX if 0.0 in values[:2]:
            return 0.0
        case Op.FDIV if values[0] == 0.0:
            return 0.0
        case Op.MUL if values[0] is not None and values[1] is not None:
            return values[0] * values[1]
        case Op.EXP | Op.EXP2 if values[0] == -math.inf:
            return 0.0
        case Op.CAST if node.dtype.kind == "float":
            return values[0]
        case Op.REDUCE if values[0] == neutral_element(node.arg, node.dtype):
            return values[0]
    return None


def steps_seen(excess: Excess, loop: UOp) -> UOp:
    """The steps of a loop without those of an excess, not clamped to the loop's bounds."""
    start, stride = excess
    return start // -stride + 1 if stride < 0 else loop.src[0] + start // stride


def tightened(kernel: UOp, loop: UOp, steps: UOp, are_first: bool) -> UOp:
    """The kernel with a loop limited to its first steps, or to its last ones.

    For the last ones the loop runs backwards, so that only one of its bounds is an expression.
    """
    end = rewrite(steps.maximum(0).minimum(loop.src[0]), simplify, name="simplify a bound")
    shorter = loop.replace(src=(end,))
    done = {loop: shorter if are_first else loop.src[0] - 1 - shorter}
    for node in kernel.toposort():
        if node is not loop:
            own = shorter if node.op in (Op.REDUCE, Op.END) else done[loop]
            done[node] = node.with_src(tuple([own if s is loop else done[s] for s in node.src]))
    return done[kernel]
