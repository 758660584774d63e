"""Index math beyond 32 bits, which is data more than it is a place in memory: done in int64.

WGSL has no wider integers, so counters and addresses are i32. Where the bounds of a node say that
its value, or one it is made of, may not fit, the node is computed in int64, as a pair of words.
"""

from __future__ import annotations

from typing import Final

from tinycore.dtype import dtypes
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, Op

__all__ = ["with_wide_index"]

LEAST, GREATEST = int(dtypes.min(dtypes.int32)), int(dtypes.max(dtypes.int32))
COMPUTED: Final = (ALU | {Op.CONST}) - {Op.CAST}


def with_wide_index(uops: tuple[UOp, ...]) -> tuple[UOp, ...]:
    """The nodes of a linear kernel, those of index math that may not fit i32 in int64."""
    if not any(map(is_beyond, uops)):
        return uops
    new: dict[UOp, UOp] = {}
    lines: list[UOp] = []
    for u in uops:
        wide = u.op in COMPUTED and any(map(is_beyond, (u, *u.src)))
        converted = [converted_source(s, new.get(s, s), wide, u.op) for s in u.src]
        lines += [s for s, old in zip(converted, u.src, strict=True) if s is not new.get(old, old)]
        if u.op is Op.CAST and converted[0].dtype is u.dtype:
            new[u] = converted[0]
            continue
        dtype = dtypes.int64 if wide and u.dtype is dtypes.index else u.dtype
        new[u] = UOp(u.op, dtype, tuple(converted), u.arg)
        lines.append(new[u])
    return tuple(lines)


def is_beyond(u: UOp) -> bool:
    """Whether a node is index math whose value may not fit i32."""
    if u.dtype is not dtypes.index:
        return False
    low, high = u.bounds
    return bool(low < LEAST or high > GREATEST)


def converted_source(old: UOp, found: UOp, wide: bool, user: Op) -> UOp:
    """What a node takes in place of an old source: the same value, in the type that it needs."""
    if old.dtype is not dtypes.index or user is Op.CAST:
        return found
    if wide and found.dtype is dtypes.index:
        return UOp(Op.CAST, dtypes.int64, (found,))
    if not wide and found.dtype is dtypes.int64:
        return UOp(Op.CAST, dtypes.index, (found,))
    return found
