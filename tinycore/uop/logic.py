"""Rules of booleans, selections, and loops that run once.

Floor 1. Holds for every dtype of the values chosen between.
"""

from __future__ import annotations

from typing import Final

from tinycore.dtype import dtypes
from tinycore.uop.node import UOp
from tinycore.uop.op import CLOSERS, Op
from tinycore.uop.pattern import Const, RuleSet, const, node, var

logic: Final = RuleSet("logic")

x, y, z = var("x"), var("y"), var("z")
p, q = var("p", kind="bool"), var("q", kind="bool")


# --- booleans


@logic.rule(p & True)
@logic.rule(p | False)
@logic.rule(p ^ False)
@logic.rule(p.ne(False))
@logic.rule(p.eq(True))
@logic.rule(p.logical_not().logical_not())
def bool_identity(p: UOp) -> UOp:
    """p & true == p, and likewise for the other ops; !!p == p."""
    return p


@logic.rule(p | True)
def or_true(p: UOp) -> UOp:
    """p | true == true."""
    return p.const_like(True)


@logic.rule(p.eq(False))
@logic.rule(p ^ True)
@logic.rule(p < True)
def bool_not(p: UOp) -> UOp:
    """p == false is !p."""
    return p.logical_not()


@logic.rule(const(arg=False, kind="bool") < p)
def false_less(p: UOp) -> UOp:
    """false < p == p."""
    return p


@logic.rule(x.eq(y).logical_not())
def not_equal(x: UOp, y: UOp) -> UOp:
    """!(x == y) is x != y, also for NaN."""
    return x.ne(y)


@logic.rule(node(Op.CMPNE, x, y, name="inner", ordered=True).logical_not())
def not_unequal(inner: UOp, x: UOp, y: UOp) -> UOp:
    """!(x != y) is x == y, also for NaN."""
    return x.eq(y)


@logic.rule(p & p.logical_not())
def contradiction(p: UOp) -> UOp:
    """p & !p == false."""
    return p.const_like(False)


@logic.rule(p | p.logical_not())
def tautology(p: UOp) -> UOp:
    """p | !p == true."""
    return p.const_like(True)


@logic.rule((p & q) & p)
@logic.rule((p | q) | p)
def repeated(root: UOp) -> UOp:
    """(p & q) & p == p & q, and likewise for |."""
    inner, other = root.src
    return inner if inner.op is root.op and other in inner.src else other


# --- choices


@logic.rule(const("a", kind="bool").where(x, y))
def known_choice(a: Const, x: UOp, y: UOp) -> UOp:
    """true ? x : y == x, and false ? x : y == y."""
    return x if a.arg else y


@logic.rule(p.where(x, x))
def same_choice(x: UOp) -> UOp:
    """p ? x : x == x."""
    return x


@logic.rule(p.where(True, False))
def choice_of_itself(p: UOp) -> UOp:
    """p ? true : false == p."""
    return p


@logic.rule(p.where(False, True))
def choice_of_opposite(p: UOp) -> UOp:
    """p ? false : true == !p."""
    return p.logical_not()


@logic.rule(p.logical_not().where(x, y))
def choice_by_negation(p: UOp, x: UOp, y: UOp) -> UOp:
    """!p ? x : y == p ? y : x."""
    return p.where(y, x)


@logic.rule(p.where(p.where(x, y), z))
def choice_known_true(p: UOp, x: UOp, z: UOp) -> UOp:
    """p ? (p ? x : y) : z == p ? x : z."""
    return p.where(x, z)


@logic.rule(p.where(x, p.where(y, z)))
def choice_known_false(p: UOp, x: UOp, z: UOp) -> UOp:
    """p ? x : (p ? y : z) == p ? x : z."""
    return p.where(x, z)


@logic.rule(p.where(q.where(x, y), y))
def nested_choice(p: UOp, q: UOp, x: UOp, y: UOp) -> UOp | None:
    """p ? (q ? x : y) : y == (p & q) ? x : y, when both conditions have as many lanes."""
    return (p & q).where(x, y) if p.dtype is q.dtype else None


# --- loops


@logic.rule(node(Op.RANGE, 1))
def single_step(root: UOp) -> UOp:
    """A RANGE below 1 is 0."""
    return UOp.index(0)


@logic.rule(node(CLOSERS, x, rest=var(), name="root"))
def drop_single_steps(root: UOp, x: UOp) -> UOp | None:
    """END and REDUCE over loops that vanished: without them, or the value itself.

    A REDUCE may have several values before its loops; constants among those are no loops.
    """
    kept = tuple([s for s in root.src[1:] if s.op is not Op.CONST or s.dtype is not dtypes.index])
    if len(kept) == len(root.src) - 1:
        return None
    if root.op is Op.END or any(s.op is Op.RANGE for s in kept):
        return root.with_src((x, *kept)) if kept else x
    for value in kept:
        x = x.alu(root.arg, value)
    return x
