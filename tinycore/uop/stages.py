"""The stages of the IR: legal ops, and registered checks of each.

Floor 1. A check looks at one node and returns what is wrong with it, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, get_args

from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, MOVEMENT, PARTIAL_WRITES, RECURRENCES, AxisKind, Op, ops_named

Stage = Literal["tensor", "kernel", "lowered", "linear"]
Check = Callable[[UOp], str | None]

STAGES: Final[tuple[Stage, ...]] = get_args(Stage)
IN_KERNELS: Final[tuple[Stage, ...]] = ("kernel", "lowered", "linear")

TENSOR_OPS: Final = (
    ops_named(
        "DEVICE UNIQUE BUFFER BUFFER_VIEW COPY ASSIGN KERNEL CUSTOM BIND CONTIGUOUS DETACH OWN"
    )
    | ops_named("CONTIGUOUS_BACKWARD CALL VALUE REDUCE_AXIS SCAN_AXIS MERGE_AXIS GATHER")
    | ops_named("CONST ARANGE DEFINE_VAR SINK")
    | PARTIAL_WRITES
    | MOVEMENT
    | ALU
)
SHARED_OPS: Final = ALU | ops_named(
    "CONST DEFINE_VAR DEFINE_GLOBAL INDEX LOAD STORE RANGE END GROUP"
)
LOWERED_OPS: Final = SHARED_OPS | ops_named(
    "DEFINE_LOCAL DEFINE_REG SPECIAL VECTORIZE EXTRACT BARRIER PIXEL DOT MATRIX SHUFFLE INSTRUCTION"
)
LEGAL: Final[dict[Stage, frozenset[Op]]] = {
    "tensor": TENSOR_OPS,
    "kernel": SHARED_OPS
    | ops_named("REDUCE SCAN STATE AFTER SINK VECTORIZE EXTRACT DEFINE_LOCAL")
    | RECURRENCES,
    "lowered": LOWERED_OPS | ops_named("AFTER SINK"),
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
