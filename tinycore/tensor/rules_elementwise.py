"""Derivatives of what is done element by element, and of what changes no value.

Floor 5.
"""

from __future__ import annotations

import math

from tinycore.dtype import dtypes
from tinycore.tensor import graph
from tinycore.tensor.rules import Gradients, rule, scale, zero
from tinycore.uop.node import UOp, device_node
from tinycore.uop.op import Op

# --- arithmetic


@rule(Op.ADD)
def of_add(node: UOp, g: UOp) -> Gradients:
    """d(a + b) = da + db."""
    return g, g


@rule(Op.SUB)
def of_sub(node: UOp, g: UOp) -> Gradients:
    """d(a - b) = da - db."""
    return g, -g


@rule(Op.MUL)
def of_mul(node: UOp, g: UOp) -> Gradients:
    """d(a b) = b da + a db."""
    a, b = node.src
    return g * b, g * a


@rule(Op.MULACC)
def of_mulacc(node: UOp, g: UOp) -> Gradients:
    """d(a b + c) = b da + a db + dc."""
    a, b, _ = node.src
    return g * b, g * a, g


@rule(Op.FDIV)
def of_fdiv(node: UOp, g: UOp) -> Gradients:
    """d(a / b) = da / b - (a / b) db / b."""
    share = g / node.src[1]
    return share, -(share * node)


@rule(Op.NEG)
def of_neg(node: UOp, g: UOp) -> Gradients:
    """d(-a) = -da."""
    return (-g,)


@rule(Op.RECIPROCAL)
def of_reciprocal(node: UOp, g: UOp) -> Gradients:
    """d(1/a) = -da / a**2."""
    return (-(g * node * node),)


@rule(Op.SQRT)
def of_sqrt(node: UOp, g: UOp) -> Gradients:
    """d sqrt(a) = da / (2 sqrt(a))."""
    return (g / scale(node, 2),)


@rule(Op.EXP)
def of_exp(node: UOp, g: UOp) -> Gradients:
    """d e**a = e**a da."""
    return (g * node,)


@rule(Op.EXP2)
def of_exp2(node: UOp, g: UOp) -> Gradients:
    """d 2**a = 2**a ln(2) da."""
    return (scale(g * node, math.log(2)),)


@rule(Op.LOG)
def of_log(node: UOp, g: UOp) -> Gradients:
    """d ln(a) = da / a."""
    return (g / node.src[0],)


@rule(Op.LOG2)
def of_log2(node: UOp, g: UOp) -> Gradients:
    """d log2(a) = da / (a ln(2))."""
    return (g / scale(node.src[0], math.log(2)),)


@rule(Op.SIN)
def of_sin(node: UOp, g: UOp) -> Gradients:
    """d sin(a) = cos(a) da, with cos(a) = 1 - 2 sin(a/2)**2."""
    half = scale(node.src[0], 0.5).alu(Op.SIN)
    return (g * (graph.full_like(g, 1) - scale(half * half, 2)),)


@rule(Op.MAX, Op.MIN)
def of_extreme(node: UOp, g: UOp) -> Gradients:
    """The gradient goes to the operand that was taken, half to each of equals."""
    a, b = node.src
    first = (b < a) if node.op is Op.MAX else (a < b)
    second = (a < b) if node.op is Op.MAX else (b < a)
    shared = a.eq(b).where(scale(g, 0.5), zero(g))
    return first.where(g, shared), second.where(g, shared)


@rule(Op.WHERE)
def of_where(node: UOp, g: UOp) -> Gradients:
    """The gradient goes to the side that was taken."""
    condition = condition_by_result(node)
    return None, condition.where(g, zero(g)), condition.where(zero(g), g)


def condition_by_result(node: UOp) -> UOp:
    """The condition of a WHERE; of a relu the same condition on its result.

    With b = where(a <= c, c, a), b <= c is a <= c, for NaN as well. Then `a` need not be stored
    beside `b`, which is stored in any case for what reads it.
    """
    condition, bound, value = node.src
    if condition.op is not Op.OR or [s.op for s in condition.src] != [Op.CMPLT, Op.CMPEQ]:
        return condition
    if any(compared.src != (value, bound) for compared in condition.src):
        return condition
    below, equal = [compared.replace(src=(node, bound)) for compared in condition.src]
    return condition.replace(src=(below, equal))


@rule(Op.CAST)
def of_cast(node: UOp, g: UOp) -> Gradients:
    """Converted back, between floats."""
    source = node.src[0].dtype
    return (g.cast(source) if dtypes.is_float(source) else None,)


# --- identity


@rule(Op.CONTIGUOUS, Op.VALUE)
def of_contiguous(node: UOp, g: UOp) -> Gradients:
    """Passed on."""
    return (g,)


@rule(Op.CONTIGUOUS_BACKWARD)
def of_contiguous_backward(node: UOp, g: UOp) -> Gradients:
    """Passed on through memory of its own."""
    return (UOp(Op.CONTIGUOUS, g.dtype, (g,)),)


@rule(Op.COPY)
def of_copy(node: UOp, g: UOp) -> Gradients:
    """Copied back to the device of the source."""
    return UOp(Op.COPY, g.dtype, (g, device_node(node.src[0].device))), None


@rule(Op.ASSIGN)
def of_assign(node: UOp, g: UOp) -> Gradients:
    """Gradient of the written value; what was there before has none.

    A CUSTOM has several results, and is told which one a gradient is of.
    """
    return None, UOp.sink(node, g) if node.src[1].op is Op.CUSTOM else g
