"""Scalarization: vector arithmetic lane by lane, for languages that only move vectors.

Instructions of plugins, whose templates are of scalars, are so for all languages.

Floor 3'. Loads, stores and variables keep their vectors; arithmetic between them is on lanes, which
EXTRACT takes out of vectors and VECTORIZE combines. An EXTRACT of a VECTORIZE cancels.
"""

from __future__ import annotations

from typing import Final

from tinycore.dtype import DType
from tinycore.lower.lanes import lane_of, vector_of
from tinycore.uop.instruction import Instruction
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, Op
from tinycore.uop.pattern import RuleSet, node

scalars: Final = RuleSet("scalars")
instructions: Final = RuleSet("instructions")


def is_vector(u: UOp) -> bool:
    """True if a value has several lanes."""
    return u.dtype.count > 1


def is_arithmetic(u: UOp) -> bool:
    """True if a value of several lanes is computed lane by lane."""
    return is_vector(u) and isinstance(u.arg, Instruction)


@instructions.rule(node(Op.INSTRUCTION, name="root", when=is_arithmetic))
@scalars.rule(node(ALU, name="root", when=is_vector))
def lane_by_lane(root: UOp) -> UOp:
    """op(a, b) == (op(a[0], b[0]), op(a[1], b[1]), ...)."""
    scalar: DType = root.dtype.scalar()
    return vector_of(
        UOp(root.op, scalar, tuple([lane_of(s, lane) for s in root.src]), root.arg)
        for lane in range(root.dtype.count)
    )


@scalars.rule(node(Op.EXTRACT, name="root"))
def extracted_lanes(root: UOp) -> UOp | None:
    """(a, b, c)[1] == b; several lanes of any vectors == each of them side by side."""
    count = root.src[0].dtype.count
    if root.dtype.count == 1 and root.src[0].op is not Op.VECTORIZE:
        return None
    return vector_of(lane_of(root.src[lane // count], lane % count) for lane in root.arg)
