"""Replay invariance: the values and kernels that are the same in every replay of a capture.

Floor 3. A capture that leaves them out of replays (`TinyJit(prune=True)`) has them scheduled first,
apart from the others: a sum of weights joined to rows of an input would be computed in each replay.
Elementwise values are stored for that if they are dear: see `Storage.place_invariant`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from tinycore.schedule.access import Launch
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, MOVEMENT, SAME_VALUE, Op

FUNCTIONS: Final = ALU | MOVEMENT | SAME_VALUE | {Op.REDUCE_AXIS, Op.GATHER, Op.CONTIGUOUS}
"""Ops that compute the same from the same operands."""


def invariant_nodes(graph: Iterable[UOp], constant: Collection[UOp]) -> frozenset[UOp]:
    """The nodes of a graph that are the same in every replay, if the memory `constant` is.

    `graph` has sources first. Memory that it assigns to is not constant; sizes that depend on a
    Variable are no numbers.
    """
    nodes = list(graph)
    written = {base_of(n.src[0]) for n in nodes if n.op is Op.ASSIGN}
    found: set[UOp] = {n for n in nodes if n.op is Op.CONST}
    for node in nodes:
        if node in constant and node not in written:
            found.add(node)
            continue
        is_fixed = node.op in FUNCTIONS and all(type(size) is int for size in node.shape)
        if is_fixed and found.issuperset(node.src):
            found.add(node)
    return frozenset(found)


def invariant_first(
    launches: Sequence[Launch], varying: frozenset[int], parameters: int
) -> tuple[list[Launch], list[Launch]]:
    """The kernels that do the same in every replay, and the others.

    `varying` are the parameters, memory numbers below `parameters`, whose content differs between
    replays. Kernels are invariant that read nothing else than what invariant ones write, and memory
    that none changes, and that write new memory as a whole: so they can be done before all.
    """
    written = Counter(place for launch in launches for place in launch.written)
    changing = {*varying, *(n for n, times in written.items() if n < parameters or times > 1)}
    invariant: list[Launch] = []
    others: list[Launch] = []
    for launch in launches:
        if launch.by_op[Op.DEFINE_VAR] or not changing.isdisjoint(launch.places):
            others.append(launch)
            changing |= launch.written
        else:
            invariant.append(launch)
    return invariant, others
