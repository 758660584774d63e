"""From a graph of tensors to nodes of ONNX: a view for each node, sources first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tiny_onnx.export.arithmetic import ARITHMETIC
from tiny_onnx.export.folds import REDUCTIONS, Folds
from tiny_onnx.export.views import View, Views, whole
from tiny_onnx.export.writer import Writer
from tinycore import Tensor
from tinycore.dtype import dtypes
from tinycore.errors import UnsupportedError
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import ALU, MOVEMENT, SAME_VALUE, UNARY, Op, registers
from tinycore.uop.size import is_size

__all__ = ["GraphWriter"]

SAME: Final = SAME_VALUE | {Op.CONTIGUOUS, Op.VALUE, Op.COPY}
"""Ops whose value is that of their first source."""
WEIGHTS: Final = frozenset({Op.BUFFER, Op.BUFFER_VIEW})
HINTS: Final[Mapping[Op, str]] = {
    Op.THREEFRY: "it draws random numbers: draw them outside, and pass them as an argument",
    Op.MERGE_AXIS: "it sorts: take the maximum, or sort the outputs where the model is used",
    Op.CUSTOM: "it is a kernel of the user",
    Op.MULTI: "it lies on several devices: move the model to one",
}
Method = Callable[["GraphWriter", UOp], View]
METHODS: Final[dict[Op, Method]] = {}
rule = registers(METHODS)


class GraphWriter:
    """The views of the nodes of a graph. `weight` names the constant that memory becomes."""

    def __init__(
        self, writer: Writer, given: Mapping[UOp, View], weight: Callable[[UOp], View | None]
    ) -> None:
        self.writer = writer
        self.views = Views(writer)
        self.folds = Folds(writer, self.views)
        self.known: dict[UOp, View] = dict(given)
        self.weight = weight
        self.varying: set[UOp] = set(given)
        """Nodes that depend on the arguments."""
        self.drawn: set[UOp] = set()
        """Nodes that depend on random numbers drawn before the call, as weights that nothing has
        computed yet: constants at the largest of them that an argument meets, or that repeats.
        """

    def write(self, roots: Sequence[UOp]) -> None:
        """Find the views of some nodes, and of all that they are computed from."""
        order = UOp.sink(*roots).toposort(lambda node: node not in self.known)[:-1]
        for node in order:
            if node in self.known or node.shape_or_none is None:
                continue
            if any(source in self.varying for source in node.src):
                self.varying.add(node)
            elif node.op is not Op.EXPAND and (
                node.op is Op.THREEFRY or any(source in self.drawn for source in node.src)
            ):
                self.drawn.add(node)
                continue
            self.settle(node.src)
            self.known[node] = self.view(node)
        self.settle(roots)

    def settle(self, nodes: Sequence[UOp]) -> None:
        """Find the views of those among some nodes that were left for later."""
        for node in nodes:
            if node in self.drawn and node not in self.known:
                self.known[node] = self.computed(node)

    def view(self, node: UOp) -> View:
        """The view of a node whose sources have theirs."""
        found = self.weight(node)
        if found is not None:
            return found
        method = METHODS.get(node.op)
        is_strange = method is None or node.op is Op.BITCAST
        if is_strange and node not in self.varying and node.op is not Op.THREEFRY:
            return self.computed(node)
        if method is None:
            why = HINTS.get(node.op, "ONNX has no operator for it")
            raise UnsupportedError(f"{node.op.name} of shape {node.shape} is not exported: {why}.")
        return method(self, node)

    def computed(self, node: UOp) -> View:
        """A constant: the value of a node that depends on no argument, computed now."""
        flat = Tensor(node).reshape(-1).contiguous().realize()
        found = self.weight(base_of(flat.uop))
        if found is None:
            raise UnsupportedError(f"{node.op.name} of shape {node.shape} is not exported")
        name = self.writer.reshaped(found.name, flat.shape, node.shape)
        return whole(name, node.dtype, node.shape)

    def full(self, node: UOp) -> str:
        """The value of a node in its shape."""
        return self.views.full(self.known[node], node.shape)

    # --- sources

    @rule(Op.CONST)
    def const(self, node: UOp) -> View:
        """A number."""
        return whole(self.writer.number(node.arg, node.dtype), node.dtype, ())

    @rule(Op.ARANGE)
    def arange(self, node: UOp) -> View:
        """0, 1, 2 ..."""
        return whole(self.writer.counted(node.arg, node.dtype), node.dtype, node.shape)

    @rule(Op.BIND)
    def bound(self, node: UOp) -> View:
        """The number of a Variable."""
        name = self.writer.cast(self.writer.size(node.arg), dtypes.int64, node.dtype)
        return whole(name, node.dtype, ())

    # --- the same value, moved, computed

    @rule(*SAME)
    def same(self, node: UOp) -> View:
        """The value of the first source."""
        return self.known[node.src[0]]

    @rule(Op.ASSIGN)
    def assigned(self, node: UOp) -> View:
        """The value that was written."""
        return self.known[node.src[1]]

    @rule(*MOVEMENT)
    def movement(self, node: UOp) -> View:
        """A movement op."""
        return self.views.moved(node, self.known[node.src[0]])

    @rule(*(ALU - {Op.THREEFRY}))
    def arithmetic(self, node: UOp) -> View:
        """An elementwise op, whose operands broadcast."""
        operands = [self.known[source] for source in node.src]
        function = ARITHMETIC[node.op]
        if node.op in UNARY:
            (view,) = operands
            name = function(self.writer, node, view.name)
            return View(name, node.dtype, view.sides, view.axes, view.windows)
        shape = node.shape
        is_uniform = all(view.is_uniform for view in operands)
        names = [
            self.views.scalar(view) if view.is_uniform else self.views.compact(view, shape)
            for view in operands
        ]
        name = function(self.writer, node, *names)
        if is_uniform:
            return View(name, node.dtype, (), (None,) * len(shape))
        shown = [any(view.axes[a] for view in operands) for a in range(len(shape))]
        sides = tuple([side if s else 1 for side, s in zip(shape, shown, strict=True)])
        alone = View(name, node.dtype, sides, tuple([None] * len(shape)))
        axes = whole(name, node.dtype, sides).axes
        return (
            View(
                name,
                node.dtype,
                sides,
                tuple([a if s else None for a, s in zip(axes, shown, strict=True)]),
            )
            if any(shown)
            else alone
        )

    # --- folds

    @rule(Op.REDUCE_AXIS)
    def reduced(self, node: UOp) -> View:
        """A reduction, or the product that it is a part of."""
        source = node.src[0]
        factors = []
        if source.op is Op.MUL:
            factors = [self.known[factor] for factor in source.src]
        return self.folds.reduced(node, self.known[source], factors)

    @rule(Op.SCAN_AXIS)
    def scanned(self, node: UOp) -> View:
        """Each element folded with those before it."""
        op, axis = node.arg
        value, dtype, writer = self.full(node.src[0]), node.dtype, self.writer
        if op is Op.ADD and dtype is not dtypes.bool:
            name = writer.computed("CumSum", dtype, value, others=[writer.constant(axis)])
            return whole(name, dtype, node.shape)
        size = self.views.fixed("SCAN_AXIS", node.shape[axis])[0]
        step = 1
        while step < size:  # Hillis and Steele: after each round twice as many are folded
            value = self.folded_with_earlier(node, value, op, axis, step)
            step *= 2
        return whole(value, dtype, node.shape)

    def folded_with_earlier(self, node: UOp, value: str, op: Op, axis: int, step: int) -> str:
        """Elements folded with those `step` before them; the first ones stay."""
        writer, constant = self.writer, self.writer.constant
        first = writer.add("Slice", value, constant([0]), constant([step]), constant([axis]))
        rest = writer.add(
            "Slice", value, constant([step]), constant([node.shape[axis]]), constant([axis])
        )
        before = writer.add("Slice", value, constant([0]), constant([-step]), constant([axis]))
        folded = ARITHMETIC[op](
            writer, node.replace(op=op, src=(node.src[0],) * 2, arg=None), before, rest
        )
        return writer.add("Concat", first, folded, axis=axis)

    # --- picking and placing elements

    @rule(Op.GATHER)
    def gathered(self, node: UOp) -> View:
        """Rows of the first axis; 0 where the index is out of range."""
        table, index = node.src
        count, writer = table.shape[0], self.writer
        if not is_size(count) and count == 0:
            zeros = writer.number(0, node.dtype)
            return View(zeros, node.dtype, (), (None,) * len(node.shape))
        rows = self.views.full(self.known[table], table.shape)
        place = writer.cast(self.full(index), index.dtype, dtypes.int64)
        last = writer.add("Sub", writer.size(count), writer.constant(1))
        clipped = writer.add("Max", writer.add("Min", place, last), writer.constant(0))
        found = writer.add("Gather", rows, clipped, axis=0)
        is_inside = writer.add("Equal", place, clipped)
        after = (*index.shape, *[1] * (len(table.shape) - 1))
        is_inside = writer.reshaped(is_inside, index.shape, after)
        zero = writer.number(0, node.dtype)
        return whole(writer.where(is_inside, node.dtype, found, zero), node.dtype, node.shape)

    @rule(Op.SCATTER)
    def scattered(self, node: UOp) -> View:
        """Elements put one after the other along an axis; none where the index is out of range."""
        into, index, rows = node.src
        op, axis = node.arg
        writer, dtype, count = self.writer, node.dtype, into.shape[axis]
        if any(not is_size(side) and side == 0 for side in (*rows.shape, *into.shape)):
            return self.known[into]
        place = writer.cast(self.full(index), index.dtype, dtypes.int64)
        beyond = writer.size(count)
        is_outside = writer.add(
            "Or",
            writer.add("Less", place, writer.constant(0)),
            writer.add("Not", writer.add("Less", place, beyond)),
        )
        place = writer.add("Where", is_outside, beyond, place)
        pads = [0] * (2 * len(into.shape))
        pads[len(into.shape) + axis] = 1  # a last row takes what belongs nowhere
        longer = writer.computed("Pad", dtype, self.full(into), others=[writer.constant(pads)])
        placed = self.placed(node, op, longer, place, self.full(rows), axis)
        name = writer.add(
            "Slice", placed, writer.sizes([0]), writer.sizes([count]), writer.constant([axis])
        )
        return whole(name, dtype, node.shape)

    def placed(self, node: UOp, op: Op | None, into: str, place: str, rows: str, axis: int) -> str:
        """A ScatterElements."""
        writer, wide = self.writer, node.dtype
        if wide is dtypes.bool and op is not None:
            op = {Op.ADD: Op.MAX, Op.MUL: Op.MIN}.get(op, op)
        given = {"reduction": REDUCTIONS[op][len("Reduce") :].lower()} if op is not None else {}
        given = {k: {"sum": "add", "prod": "mul"}.get(v, v) for k, v in given.items()}
        if wide not in SCATTERED:
            wide = SCATTERED_AS[wide]
        into, rows = (writer.cast(each, node.dtype, wide) for each in (into, rows))
        found = writer.add("ScatterElements", into, place, rows, axis=axis, **given)
        return writer.cast(found, wide, node.dtype)

    @rule(Op.INSERT)
    def inserted(self, node: UOp) -> View:
        """A value put where a view of the first source shows it."""
        into, shown, value = node.src
        if any(not is_size(side) and side == 0 for side in (*value.shape, *into.shape)):
            return self.known[into]
        chain = []
        while shown is not into:
            chain.append(shown)
            shown = shown.src[0]
        writer, count = self.writer, math.prod(into.shape)
        name = writer.reshaped(writer.counted(count), (count,), into.shape)
        places = whole(name, dtypes.int64, into.shape)
        for step in reversed(chain):
            places = self.views.moved(step, places) if step.op in MOVEMENT else places
        flat = (math.prod(value.shape),)
        place = writer.reshaped(self.views.full(places, node.src[1].shape), value.shape, flat)
        rows = writer.reshaped(self.full(value), value.shape, flat)
        target = writer.reshaped(self.full(into), into.shape, (count,))
        found = self.placed(node, None, target, place, rows, 0)
        return whole(writer.reshaped(found, (count,), into.shape), node.dtype, node.shape)


SCATTERED: Final = frozenset(
    {dtypes.float32, dtypes.float64, dtypes.float16, dtypes.int32, dtypes.int64, dtypes.int8}
    | {dtypes.uint8, dtypes.int16, dtypes.uint16, dtypes.uint32, dtypes.uint64}
)
SCATTERED_AS: Final = {
    dtypes.bool: dtypes.uint8, **dict.fromkeys((dtypes.bfloat16, *dtypes.fp8s), dtypes.float32),
}  # fmt: skip
