"""The stages of the IR: legal ops, and registered checks of each.

Floor 1. A check looks at one node and returns what is wrong with it, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, get_args

from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, MOVEMENT, PARTIAL_WRITES, RECURRENCES, AxisKind, Op

Stage = Literal["tensor", "kernel", "lowered", "linear"]
Check = Callable[[UOp], str | None]

STAGES: Final[tuple[Stage, ...]] = get_args(Stage)
IN_KERNELS: Final[tuple[Stage, ...]] = ("kernel", "lowered", "linear")

TENSOR_OPS: Final = (
    frozenset({Op.DEVICE, Op.UNIQUE, Op.BUFFER, Op.BUFFER_VIEW, Op.COPY, Op.ASSIGN, Op.KERNEL})
    | {
        Op.CUSTOM,
        Op.BIND,
        Op.CONTIGUOUS,
        Op.DETACH,
        Op.OWN,
        Op.CONTIGUOUS_BACKWARD,
        Op.CALL,
        Op.VALUE,
        Op.REDUCE_AXIS,
        Op.SCAN_AXIS,
        Op.MERGE_AXIS,
        Op.GATHER,
    }
    | {Op.CONST, Op.ARANGE, Op.DEFINE_VAR, Op.SINK}
    | PARTIAL_WRITES
    | MOVEMENT
    | ALU
)
SHARED_OPS: Final = (
    frozenset({Op.CONST, Op.DEFINE_VAR, Op.DEFINE_GLOBAL, Op.INDEX, Op.LOAD, Op.STORE, Op.RANGE})
    | {Op.END, Op.GROUP}
    | ALU
)
LOWERED_OPS: Final = (
    frozenset({Op.DEFINE_LOCAL, Op.DEFINE_REG, Op.SPECIAL, Op.VECTORIZE, Op.EXTRACT, Op.BARRIER})
    | {Op.PIXEL, Op.DOT, Op.MATRIX, Op.SHUFFLE}
    | {Op.INSTRUCTION}
    | SHARED_OPS
)
LEGAL: Final[dict[Stage, frozenset[Op]]] = {
    "tensor": TENSOR_OPS,
    "kernel": SHARED_OPS
    | {Op.REDUCE, Op.SCAN, Op.STATE, Op.AFTER, Op.SINK, Op.VECTORIZE, Op.EXTRACT}
    | {Op.DEFINE_LOCAL}
    | RECURRENCES,
    "lowered": LOWERED_OPS | {Op.AFTER, Op.SINK},
    "linear": LOWERED_OPS,
}
"""The ops that may occur at each stage."""

EVERYWHERE: Final = ALU - {Op.FLOORDIV, Op.FLOORMOD, Op.THREEFRY}
"""Arithmetic that every renderer has, or that is lowered to what it has."""

LAUNCH_NAMES: Final = frozenset(
    f"{prefix}{axis}" for prefix in ("grid", "block") for axis in range(3)
)
"""Names of SPECIALs."""

LOOPS: Final = frozenset({AxisKind.LOOP, AxisKind.REDUCE, AxisKind.ORDERED, AxisKind.PARALLEL})
checks: Final[dict[Stage, dict[Op, list[Check]]]] = {
    stage: {op: [] for op in Op} for stage in STAGES
}


def check(ops: Iterable[Op], stages: Sequence[Stage] = STAGES) -> Callable[[Check], Check]:
    """Add the decorated function to the checks of some ops at some stages."""

    def add(function: Check) -> Check:
        for stage in stages:
            for op in ops:
                checks[stage][op].append(function)
        return function

    return add
