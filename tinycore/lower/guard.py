"""Gates around what threads past the end of a loop would store.

Floor 3'. Threads of a grid come in whole groups, so some may have no step of their own. They run
along, since all threads of a group must meet at its barriers, and read what the last step reads.
"""

from __future__ import annotations

from collections.abc import Callable

from tinycore.render.base import pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op, neutral_element


def rebuilt(kernel: UOp, change: Callable[[UOp, UOp], UOp]) -> UOp:
    """The kernel with `change(node, the node over changed sources)` in place of every node."""
    done: dict[UOp, UOp] = {}
    for node in kernel.toposort():
        done[node] = change(node, node.with_src(tuple([done[s] for s in node.src])))
    return done[kernel]


def gate_stores(kernel: UOp, gate: UOp, inside: UOp | None = None) -> UOp:
    """The kernel with its stores to buffers done only where `gate` holds.

    With `inside`, a loop, only the stores in it.
    """

    def gated(node: UOp, new: UOp) -> UOp:
        is_output = node.op is Op.STORE and pointer_of(node.src[0]).op is Op.DEFINE_GLOBAL
        if not is_output or not (inside is None or inside in node.ranges):
            return new
        index, value = new.src
        both = index.src[2] & gate if len(index.src) == 3 else gate
        return new.with_src((index.with_src((*index.src[:2], both)), value))

    return rebuilt(kernel, gated)


def gate_sums(kernel: UOp, gate: UOp, counter: UOp) -> UOp:
    """The kernel with what is folded over a loop left out where `gate` does not hold."""

    def gated(node: UOp, new: UOp) -> UOp:
        if node.op is not Op.REDUCE or counter not in node.src[1:]:
            return new
        neutral = new.const_like(neutral_element(node.arg, node.dtype))
        values = [s if s.op is Op.RANGE else gate.where(s, neutral) for s in new.src]
        return new.with_src(tuple(values))

    return rebuilt(kernel, gated)
