"""The verifier of tensor graphs, before scheduling.

Floor 1. One part of `verify.py`.
"""

from __future__ import annotations

import math
from itertools import pairwise

from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, MOVEMENT, REDUCTIONS, Merge, Op
from tinycore.uop.shape import merged_size
from tinycore.uop.size import greatest
from tinycore.uop.stages import check


@check(ALU, ["tensor"])
def shapes_agree(node: UOp) -> str | None:
    """Tensors are broadcast before they meet."""
    shapes = {s.shape_or_none for s in node.src} - {None}
    return None if len(shapes) <= 1 else f"operands of shapes {', '.join(map(str, sorted(shapes)))}"  # type: ignore[type-var]


@check(
    MOVEMENT
    | {Op.REDUCE_AXIS, Op.SCAN_AXIS, Op.MERGE_AXIS, Op.GATHER, Op.CONTIGUOUS, Op.COPY, Op.ASSIGN},
    ["tensor"],
)
def moves_a_tensor(node: UOp) -> str | None:
    """Only what has a shape can be moved, reduced or copied."""
    return None if node.src[0].shape_or_none is not None else "the source has no shape"


@check([Op.RESHAPE], ["tensor"])
def keeps_elements(node: UOp) -> str | None:
    """RESHAPE keeps the number of elements."""
    source = node.src[0].shape
    same = math.prod(source) == math.prod(node.arg)
    return None if same else f"shape {source} cannot become {node.arg}"


@check([Op.EXPAND], ["tensor"])
def expands_ones(node: UOp) -> str | None:
    """EXPAND repeats axes of size 1."""
    source = node.src[0].shape
    fits = len(source) == len(node.arg) and all(
        a in (1, b) for a, b in zip(source, node.arg, strict=True)
    )
    return None if fits else f"shape {source} cannot be expanded to {node.arg}"


@check([Op.PERMUTE], ["tensor"])
def is_permutation(node: UOp) -> str | None:
    """PERMUTE names every axis once."""
    axes = list(range(len(node.src[0].shape)))
    return None if sorted(node.arg) == axes else f"{node.arg} is no order of {len(axes)} axes"


@check([Op.PAD, Op.SHRINK, Op.FLIP], ["tensor"])
def has_entry_per_axis(node: UOp) -> str | None:
    """PAD, SHRINK and FLIP say something about every axis, and stay inside it."""
    shape = node.src[0].shape
    if len(node.arg) != len(shape):
        return f"{len(node.arg)} entries for {len(shape)} axes"
    if node.op is Op.PAD and any(greatest(n) < 0 for pair in node.arg for n in pair):
        return f"negative padding {node.arg}"
    boxes = zip(shape, node.arg, strict=True)
    if node.op is Op.SHRINK and not all(may_ascend(0, *pair, size) for size, pair in boxes):
        return f"{node.arg} is no box inside shape {shape}"
    return None


def may_ascend(*sizes: int) -> bool:
    """True if sizes are in order for some numbers of their variables."""
    return all(greatest(b - a) >= 0 for a, b in pairwise(sizes))


@check([Op.REDUCE_AXIS, Op.SCAN_AXIS], ["tensor"])
def folds_axes(node: UOp) -> str | None:
    """REDUCE_AXIS and SCAN_AXIS fold along existing axes by an op that has a neutral element."""
    op, axes = node.arg
    axes = (axes,) if node.op is Op.SCAN_AXIS else axes
    if op not in REDUCTIONS:
        return f"{op!r} is no reduction"
    count = len(node.src[0].shape)
    fits = len(set(axes)) == len(axes) and all(0 <= axis < count for axis in axes)
    return None if fits else f"axes {axes} of {count}"


@check([Op.MERGE_AXIS], ["tensor"])
def merges_whole_pieces(node: UOp) -> str | None:
    """MERGE_AXIS merges runs one after the other, into whole pieces of several elements."""
    keys, values = node.src
    how: Merge = node.arg
    if keys.shape != values.shape:
        return f"keys of shape {keys.shape} for values of {values.shape}"
    size = merged_size(keys.shape[-1], how)
    fits = how.piece > 1 and how.kept % how.piece == size % how.piece == 0
    if fits and how.run & (how.run - 1) == 0 and how.run <= how.kept <= 2 * how.run:
        return None
    return f"{how} of {keys.shape[-1]} elements"


@check([Op.SCATTER], ["tensor"])
def scatters_along_an_axis(node: UOp) -> str | None:
    """SCATTER puts elements beside the axis they are spread along, at integer places."""
    x, index, rows = node.src
    op, axis = node.arg
    if op is not None and op not in REDUCTIONS:
        return f"{op!r} is no reduction"
    if index.dtype.kind not in ("int", "uint"):
        return f"the index is of {index.dtype!r}"
    beside = [s[:axis] + s[axis + 1 :] for s in (x.shape, rows.shape)]
    fits = index.shape == rows.shape and beside[0] == beside[1] and rows.dtype is x.dtype
    return None if fits else f"{rows.shape} at {index.shape} into {x.shape} along axis {axis}"


@check([Op.INSERT], ["tensor"])
def inserts_into_a_view(node: UOp) -> str | None:
    """INSERT writes where a view shows each element once."""
    x, view, value = node.src
    if view.shape != value.shape or value.dtype is not x.dtype:
        return f"{value.dtype!r} {value.shape} into {x.dtype!r} {view.shape}"
    while view is not x and view.op in MOVEMENT - {Op.EXPAND, Op.PAD, Op.UNSKEW}:
        view = view.src[0]
    return None if view is x else f"the second source is no view of the first, but {view.op.name}"
