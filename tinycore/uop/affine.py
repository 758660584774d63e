"""Index expressions as sums: which counters they depend on, and by what factor.

Floor 1. A stride of 1 is what makes a vector load; a stride of 0 is reuse.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from tinycore.uop.node import UOp
from tinycore.uop.op import Op

Terms = dict[UOp | None, int]
"""A sum: factor by term; the constant is under None."""

known: WeakKeyDictionary[UOp, Terms] = WeakKeyDictionary()


def terms(expression: UOp) -> Terms:
    """An integer expression as a sum of constant multiples of what cannot be taken apart."""
    if (found := known.get(expression)) is None:
        found = known[expression] = taken_apart(expression)
    return found


def taken_apart(node: UOp) -> Terms:
    """The terms of one node, given those of its sources."""
    if node.op is Op.CONST:
        return {None: node.arg} if node.arg else {}
    if node.op is Op.ADD:
        return added(terms(node.src[0]), terms(node.src[1]), 1)
    if node.op is Op.SUB:
        return added(terms(node.src[0]), terms(node.src[1]), -1)
    if node.op is Op.NEG:
        return added({}, terms(node.src[0]), -1)
    if node.op is Op.MUL:
        for factor, other in (node.src, node.src[::-1]):
            if factor.op is Op.CONST:
                return added({}, terms(other), factor.arg)
    return {node: 1}


def added(a: Terms, b: Terms, factor: int) -> Terms:
    """a + b * factor."""
    total = dict(a)
    for term, multiple in b.items():
        total[term] = total.get(term, 0) + multiple * factor
    return {t: m for t, m in total.items() if m}


def coefficient(expression: UOp, counter: UOp) -> int | None:
    """By how much `expression` grows with each step of `counter`; None where that varies."""
    if counter not in expression.ranges:
        return 0
    parts = terms(expression)
    if any(t is not None and t is not counter and counter in t.ranges for t in parts):
        return None
    return parts.get(counter, 0)
