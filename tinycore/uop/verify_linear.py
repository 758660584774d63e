"""The verifier of linear programs: definitions before uses, inside the same loops.

Floor 1. The part of `verify.py` that looks at a whole program and not at one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tinycore.errors import VerifyError
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.text import inline

ONCE: Final = frozenset(
    {Op.DEFINE_GLOBAL, Op.DEFINE_LOCAL, Op.DEFINE_REG, Op.DEFINE_VAR, Op.SPECIAL, Op.RANGE}
)
"""Ops that a linear program has once."""
READS_NOTHING: Final = frozenset({Op.END, Op.SPECIAL})
"""END closes what stands before it, a SPECIAL's size is known at launch."""


def illegal(stage: str, node: UOp, problem: str) -> VerifyError:
    """The error for one node."""
    return VerifyError(f"illegal at stage {stage!r}: {problem}\n  in {node!r}\n  = {inline(node)}")


def check_order(program: Sequence[UOp]) -> None:
    """Raise VerifyError unless every node comes after its sources, inside their loops.

    What reads a register may occur again, after the register was written.
    """
    scopes: dict[UOp, tuple[UOp, ...]] = {}
    loops: tuple[UOp, ...] = ()
    check_launch(program)
    for node in program:
        if node in scopes and node.op in ONCE:
            raise illegal("linear", node, f"{node.op.name} occurs twice")
        if node.op is Op.END:
            check_end(node, loops)
            loops = loops[:-1]
        for source in node.src if node.op not in READS_NOTHING else ():
            if source not in scopes:
                raise illegal("linear", node, f"{source.op.name} is used before it is defined")
            scope = scopes[source]
            if source.src and scope != loops[: len(scope)]:
                raise illegal("linear", node, f"{source.op.name} is used outside of its loop")
        if node.op is Op.BARRIER:
            check_barrier(node, loops)
        if node.op is Op.RANGE:
            loops = (*loops, node)
        known = scopes.get(node)
        if known is None or known != loops[: len(known)]:
            scopes[node] = loops
    if loops:
        raise illegal("linear", loops[-1], "the loop is never closed")


def check_launch(program: Sequence[UOp]) -> None:
    """Raise VerifyError unless each axis of the launch has one size."""
    sizes: dict[str, UOp] = {}
    for node in program:
        if node.op is Op.SPECIAL and sizes.setdefault(node.arg, node.src[0]) is not node.src[0]:
            raise illegal("linear", node, f"{node.arg} has two sizes")


def check_barrier(node: UOp, loops: tuple[UOp, ...]) -> None:
    """Raise VerifyError unless all threads pass a BARRIER equally often."""
    for loop in loops:
        if any(map(differs_between_threads, loop.src[0].toposort())):
            problem = f"the end of {inline(loop)}, which it is in, differs between threads"
            raise illegal("linear", node, problem)


def check_end(node: UOp, loops: tuple[UOp, ...]) -> None:
    """Raise VerifyError unless an END closes just the innermost loop."""
    if len(node.src) != 2:
        raise illegal("linear", node, f"END closes one RANGE, here are {len(node.src) - 1}")
    if not loops or loops[-1] is not node.src[1]:
        innermost = inline(loops[-1]) if loops else "none"
        problem = f"END closes {inline(node.src[1])}, the innermost open loop is {innermost}"
        raise illegal("linear", node, problem)


def differs_between_threads(node: UOp) -> bool:
    """True if threads of a group may have other values of a node than each other."""
    is_thread = node.op is Op.SPECIAL and not str(node.arg).startswith("grid")
    return is_thread or node.op is Op.LOAD
