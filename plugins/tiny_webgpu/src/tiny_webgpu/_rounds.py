"""Iterations of a kernel's loops, counted for a driver that ends loops after a while.

llvmpipe, Mesa's driver in software, guards itself against loops without an end: once the loops of
one thread have gone round 65,535 times, all together, each of them ends, and the kernel goes on
with what it has. (Mesa, src/gallium/auxiliary/gallivm/lp_bld_limits.h: the limit on iterations.)
"""

from __future__ import annotations

from typing import Final

from tinycore.dtype import dtypes
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["LLVMPIPE_ROUNDS", "most_rounds"]

LLVMPIPE_ROUNDS: Final = 65_535
_DIVISIONS: Final = frozenset({Op.IDIV, Op.MOD})
_DIVISION_ROUNDS: Final = 64
"""A division of 64-bit integers goes bit by bit."""


def most_rounds(uops: tuple[UOp, ...]) -> int:
    """The rounds of all loops of one thread together, where every variable is at its greatest."""
    total, times = 0, [1]
    for u in uops:
        if u.op is Op.RANGE:
            times.append(times[-1] * max(int(u.src[0].bounds[1]), 0))
            total += times[-1]
        elif u.op is Op.END:
            times.pop()
        elif u.op in _DIVISIONS and u.dtype in dtypes.int64s:
            total += times[-1] * _DIVISION_ROUNDS
    return total
