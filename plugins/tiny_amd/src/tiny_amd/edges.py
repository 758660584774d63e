"""Edges of matrix products in a step of a loop: places that LLVM's scheduler moves nothing past.

What is loaded for the next step waits in registers while a unit multiplies (software pipelining).
LLVM would load it after the products, just before it is stored to LDS.
"""

from __future__ import annotations

from tinycore.render.base import LATE, LinearKernel
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["edges_of"]


def edges_of(kernel: LinearKernel) -> frozenset[UOp]:
    """The first product behind loads for the next step, and the first store of these."""
    if not any(u.op is Op.STORE and u.arg == LATE for u in kernel.uops):
        return frozenset()
    found: set[UOp] = set()
    before = None
    for u in kernel.uops:
        is_late = u.op is Op.STORE and u.arg == LATE
        if (u.op is Op.MATRIX) != (before is Op.MATRIX) and (u.op is Op.MATRIX or is_late):
            found.add(u)
        if u.op in (Op.MATRIX, Op.BARRIER) or is_late:
            before = u.op
    return frozenset(found)
