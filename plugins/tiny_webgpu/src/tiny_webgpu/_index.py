"""Index math beyond 32 bits, which is data more than it is a place in memory: done in int64.

WGSL has no wider integers, so counters and addresses are i32. Where the bounds of a node say that
its value, or one it is made of, may not fit, the node is computed in int64, as a pair of words.
Sums and products that end in an address need no such care: they may wrap, as what does not fit at
the end is no place in memory.
"""

from __future__ import annotations

from typing import Final

from tinycore.dtype import PointerDType, dtypes
from tinycore.errors import UnsupportedError
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, Op

__all__ = ["refuse_huge", "with_wide_index"]

LEAST, GREATEST = int(dtypes.min(dtypes.int32)), int(dtypes.max(dtypes.int32))
COMPUTED: Final = ALU | {Op.CONST}
COUNTERS: Final = frozenset({Op.RANGE, Op.SPECIAL})
MODULAR: Final = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NEG})
"""Ops whose low words depend on the low words of their operands alone."""
BY_LOW_WORDS: Final = MODULAR | {Op.CAST, Op.CONST}
"""Ops that need not be done in int64 where only the low word of what they give counts."""


def with_wide_index(uops: tuple[UOp, ...]) -> tuple[UOp, ...]:
    """The nodes of a linear kernel, those of index math that must not wrap in int64."""
    if not any(map(is_beyond, uops)):
        return uops
    exact = must_not_wrap(uops)
    new: dict[UOp, UOp] = {}
    lines: list[UOp] = []
    for u in uops:
        wide = u.op in COMPUTED and any(map(is_beyond, (u, *u.src)))
        wide = wide and (u in exact or u.op not in BY_LOW_WORDS or u.dtype is not dtypes.index)
        converted = [converted_source(s, new.get(s, s), wide, u.op) for s in u.src]
        lines += [s for s, old in zip(converted, u.src, strict=True) if s is not new.get(old, old)]
        dtype = dtypes.int64 if wide and u.dtype is dtypes.index else u.dtype
        if u.op is Op.CAST and converted[0].dtype is dtype:
            new[u] = converted[0]
            continue
        arg = wrapped(u.arg) if u.op is Op.CONST and is_beyond(u) and not wide else u.arg
        new[u] = UOp(u.op, dtype, tuple(converted), arg)
        lines.append(new[u])
    return tuple(lines)


def refuse_huge(name: str, uops: tuple[UOp, ...]) -> None:
    """Raises UnsupportedError for arrays and loops whose elements and steps i32 cannot count."""
    for u in uops:
        if u.op is Op.DEFINE_GLOBAL and isinstance(u.dtype, PointerDType):
            if u.dtype.size > GREATEST:
                raise UnsupportedError(
                    f"{name} addresses {u.dtype.size:,} elements of {u.dtype.base.name}, and WGSL "
                    f"counts up to 2**31 - 1. Divide the tensor, or use another device."
                )
        elif u.op in COUNTERS and is_beyond(u):
            raise UnsupportedError(
                f"{name} has a loop of {u.bounds[1] + 1:,} steps, and WGSL counts up to 2**31 - 1. "
                "Divide the tensor, or use another device."
            )


def must_not_wrap(uops: tuple[UOp, ...]) -> set[UOp]:
    """The nodes of which more than the low word counts, as they do not only end in an address."""
    found: set[UOp] = set()
    for u in reversed(uops):
        if u.op is not Op.INDEX and not (u.op in MODULAR and u not in found):
            found.update(u.src)
    return found


def is_beyond(u: UOp) -> bool:
    """True if a node is index math whose value may not fit i32."""
    if u.dtype is not dtypes.index:
        return False
    low, high = u.bounds
    return bool(low < LEAST or high > GREATEST)


def wrapped(value: int) -> int:
    """The number that has the low word of another."""
    return (value - LEAST) % (1 << 32) + LEAST


def converted_source(old: UOp, found: UOp, wide: bool, user: Op) -> UOp:
    """Return the new source of a node: the same value, in the type that the node needs."""
    if old.dtype is not dtypes.index or user is Op.CAST:
        return found
    if wide and found.dtype is dtypes.index:
        return UOp(Op.CAST, dtypes.int64, (found,))
    if not wide and found.dtype is dtypes.int64:
        return UOp(Op.CAST, dtypes.index, (found,))
    return found
