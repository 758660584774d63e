"""Verifier of tiled kernels: why a device cannot launch one, whatever steps have made it.

Floor 3'. Strategies propose legal plans only. Plans by sizes that a search asks for are checked
before they are compiled, those of the strategies themselves where VERIFY=1.
"""

from __future__ import annotations

import math
from typing import Final

from tinycore.lower.dims import launches
from tinycore.lower.loops import fills_of, threads_of
from tinycore.lower.predicate import loops_around_stores
from tinycore.lower.steps.bind import COPYING
from tinycore.lower.steps.stage import MOST_SCRATCH, scratch_bytes
from tinycore.render.base import Limits
from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind, Op, Part

LONGEST_VECTOR: Final = 64
"""Lanes."""


def problem_of(kernel: UOp, limits: Limits) -> str | None:
    """Why a device cannot launch a tiled kernel; None if it can."""
    launched, around = (AxisKind.GRID, AxisKind.BLOCK, AxisKind.LANE), loops_around_stores(kernel)
    follows = {AxisKind.GRID: limits.grid_varies, AxisKind.PARALLEL: limits.parallel_varies}
    once = {*threads_of(kernel), *(r for r in kernel.every(Op.RANGE) if r.kind in COPYING)}
    for loop in kernel.every(Op.RANGE):
        kind, steps = loop.kind, loop.extent
        if kind in launched and steps > 1 and loop not in around:
            return f"something is stored outside of loop {loop.number}, as each of its steps would"
        if not loop.is_fixed and follows.get(kind) is False:
            return f"how often loop {loop.number} runs is known at launch only"
        is_lanes = kind is AxisKind.VECTOR and Part.UNIT not in loop.number
        if is_lanes and (steps > LONGEST_VECTOR or steps & (steps - 1)):
            return f"{steps} lanes are no power of two up to {LONGEST_VECTOR}"
        if kind is AxisKind.GROUP and steps & (steps - 1):
            return f"{steps} threads that share a sum are no power of two"
        if kind is AxisKind.PARALLEL and loop is not kernel.src[0].src[1]:
            return "threads share the outermost loop of the whole kernel only"
    if any(not once.isdisjoint(fill.ranges) for fill in fills_of(kernel)):
        return "memory of a whole group is filled in each of several threads or copies"
    return lack_of_room(kernel, limits)


def lack_of_room(kernel: UOp, limits: Limits) -> str | None:
    """Why a group of threads does not fit a device; None if it does."""
    threads = [r.extent for r in threads_of(kernel)]
    total, size = math.prod(threads), scratch_bytes(kernel)
    if total > max(limits.block_threads, 1) or not launches(threads, "block", limits.block):
        return f"{total} threads on {len(threads)} axes are too many for a group"
    for fold in kernel.every(Op.REDUCE):
        if any(r.kind is AxisKind.GROUP for r in fold.src[1:]):
            size += 2 * max(fold.dtype.itemsize, 4) * total  # each leaves its part, some another
    if size > (2 * MOST_SCRATCH if limits.grid is None else limits.shared_bytes):
        return f"{size} bytes of scratch memory are too many"
    return None
