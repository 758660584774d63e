"""Derivatives: what a rule is, and where each is found.

Floor 5. A rule gets a node and the gradient of its value, and gives that of each source: nodes
again, so derivatives can be differentiated. None stands for no gradient, as of integers and bools.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tinycore.dtype import Scalar
from tinycore.tensor import graph
from tinycore.uop.node import UOp
from tinycore.uop.op import Op, registers

Gradients = tuple[UOp | None, ...]
Rule = Callable[[UOp, UOp], Gradients]

GRADIENT_RULES: Final[dict[Op, Rule]] = {}
"""The derivative of every op that has one."""
rule: Final = registers(GRADIENT_RULES)
"""Register a function as the derivative of some ops."""


def scale(x: UOp, number: Scalar) -> UOp:
    """x * number."""
    return x.alu(Op.MUL, graph.full_like(x, number))


def zero(x: UOp) -> UOp:
    """0 in the shape of `x`."""
    return graph.full_like(x, 0)
