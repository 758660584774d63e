"""Placeholders: tensors inside of custom kernels, and the graph built from them.

Floor 5. A user's function gets a Placeholder for each tensor and returns what it stores. Here its
loops are closed, and what lowering, or the memory beyond a tensor's end, would not forgive is
refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from tinycore.dtype import DType, Scalar, dtypes
from tinycore.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, VerifyError
from tinycore.render.base import pointer_of
from tinycore.schedule.ranges import flatten
from tinycore.tensor.races import races
from tinycore.uop.node import UOp, as_index
from tinycore.uop.op import COMPOUND, AxisKind, Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.shape import Shape
from tinycore.uop.symbolic import simplify
from tinycore.uop.text import inline
from tinycore.uop.verify import verify

Index = int | UOp
KernelFunction = Callable[..., Any]

UNLOWERED_LOOPS: Final = frozenset({AxisKind.LOOP, AxisKind.REDUCE, AxisKind.ORDERED})
"""Kinds of loops in a kernel before it is lowered."""
STATEMENTS: Final = COMPOUND | {Op.STORE}
"""Ops that a kernel function may return, one or several."""

UNFORESEEN: Final = frozenset({Op.LOAD, Op.STATE})
"""Ops whose value is not known before the launch."""


class Placeholder:
    """A tensor inside a kernel: `shape`, `dtype`, and elements at index expressions."""

    __slots__ = ("dtype", "pointer", "shape")

    def __init__(self, slot: int, shape: Shape, dtype: DType) -> None:
        self.shape = shape
        self.dtype = dtype
        self.pointer = UOp(Op.DEFINE_GLOBAL, dtype.ptr(math.prod(shape)), (), slot)

    def __repr__(self) -> str:
        return f"<Placeholder {self.pointer.arg} {self.shape} {self.dtype!r}>"

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> UOp:
        """The element at one number or index expression per axis."""
        return self.load(index)

    def load(
        self, index: Index | tuple[Index, ...], gate: UOp | None = None, otherwise: Scalar = 0
    ) -> UOp:
        """The element there; where `gate` is false, nothing is read: it is `otherwise`."""
        alternative = () if gate is None else (UOp.const(self.dtype, otherwise),)
        return UOp(Op.LOAD, self.dtype, (self.place(index, gate), *alternative))

    def store(
        self, index: Index | tuple[Index, ...], value: UOp | Scalar, gate: UOp | None = None
    ) -> UOp:
        """A store of a value there, where `gate` holds. Raises DTypeError for another dtype."""
        node = value if isinstance(value, UOp) else UOp.const(self.dtype, value)
        if node.dtype is not self.dtype:
            raise DTypeError(
                f"custom_kernel: a value of {node.dtype!r} stored to {self.dtype!r}; cast it"
            )
        return UOp(Op.STORE, dtypes.void, (self.place(index, gate), node))

    def place(self, index: Index | tuple[Index, ...], gate: UOp | None = None) -> UOp:
        """The INDEX of an element. Raises ShapeError unless there is an entry for every axis."""
        entries = index if isinstance(index, tuple) else (index,)
        if len(entries) != self.ndim:
            raise ShapeError(
                f"custom_kernel: {len(entries)} indices for the {self.ndim} axes of {self!r}"
            )
        point = tuple([as_index(entry).cast(dtypes.index) for entry in entries])
        gates = () if gate is None else (gate,)
        return UOp(Op.INDEX, self.pointer.dtype, (self.pointer, flatten(point, self.shape), *gates))


def kernel_of(function: KernelFunction, placeholders: Sequence[Placeholder]) -> UOp:
    """The SINK of the kernel that a function makes of placeholders.

    Raises ArgumentError with the reason when it is no kernel that can be run.
    """
    name = getattr(function, "__name__", "fxn")
    sink = closed(statements_of(name, function(*placeholders)))
    try:
        verify(sink, "kernel")
    except VerifyError as error:
        raise ArgumentError(f"custom_kernel: {name} made no legal kernel: {error}") from None
    sink = rewrite(sink, simplify, name="simplify kernel")
    pointers = {placeholder.pointer for placeholder in placeholders}
    for problem in problems(sink, pointers):
        raise ArgumentError(f"custom_kernel: {name}: {problem}")
    return sink


def statements_of(name: str, result: Any) -> list[UOp]:
    """Statements that a kernel function returned. Raises ArgumentTypeError for anything else."""
    found = list(result) if isinstance(result, (list, tuple)) else [result]
    wrong = [x for x in found if not (isinstance(x, UOp) and x.op in STATEMENTS)]
    if wrong or not found:
        raise ArgumentTypeError(
            f"custom_kernel: {name} returned {wrong[0] if wrong else 'nothing'!r}; it must return "
            "what it stores: x.store(index, value), several of these, or a SINK over ENDs of them"
        )
    return [part for node in found for part in (node.src if node.op is Op.SINK else (node,))]


def closed(statements: Iterable[UOp]) -> UOp:
    """A SINK over statements, each loop that is still open closed around all that are in it."""
    nests: dict[tuple[UOp, ...], list[UOp]] = {}
    for statement in statements:
        loops = sorted(statement.ranges, key=lambda r: (r.arg.kind is AxisKind.ORDERED, r.arg))
        nests.setdefault(tuple(loops), []).append(statement)
    ends = []
    for nest, inside in nests.items():
        body = inside[0] if len(inside) == 1 else UOp(Op.GROUP, dtypes.void, tuple(inside))
        ends.append(UOp(Op.END, dtypes.void, (body, *nest)) if nest else body)
    return UOp.sink(*ends)


def stored_slots(sink: UOp) -> tuple[int, ...]:
    """The slots that a kernel stores to."""
    pointers = {pointer_of(n.src[0]) for n in sink.toposort() if n.op is Op.STORE}
    return tuple(sorted(p.arg for p in pointers if p.op is Op.DEFINE_GLOBAL))


def problems(sink: UOp, pointers: set[UOp]) -> Iterable[str]:
    """Errors in a kernel that is legal as a graph, as text."""
    nodes = sink.toposort()
    if not any(n.op is Op.STORE for n in nodes):
        yield "it stores nothing"
    counters: dict[tuple[int, ...], UOp] = {}
    for node in nodes:
        if node.op is Op.DEFINE_GLOBAL and node not in pointers:
            yield f"slot {node.arg} of {node.dtype!r} is none of its placeholders"
        elif node.op is Op.DEFINE_VAR:
            yield f"variable {node.arg[0]} has no value here; pass a tensor of one element"
        elif node.op is Op.RANGE:
            if node.arg.kind not in UNLOWERED_LOOPS:
                yield f"an axis of kind {node.arg.kind.name} comes from lowering; use LOOP"
            if counters.setdefault(node.arg.number, node) is not node:
                yield f"two loops have the number {node.arg.number[0]}"
        elif node.op is Op.INDEX:
            yield from beyond_the_end(node)
        elif node.op is Op.STORE:
            yield from unfolded(node)
    yield from races(tuple([n for n in nodes if n.op is Op.STORE]))


def beyond_the_end(node: UOp) -> Iterable[str]:
    """An INDEX that may leave its memory; loaded or carried values are unpredictable."""
    pointer, place = node.src[:2]
    size = pointer.dtype.size  # type: ignore[attr-defined]
    if len(node.src) == 3 or any(n.op in UNFORESEEN for n in place.toposort()):
        return
    if place.vmin < 0 or place.vmax >= size:
        yield (
            f"index {inline(place)} goes from {place.vmin} to {place.vmax} in a tensor of {size} "
            "elements; end the loop earlier, or give the access a gate"
        )


def unfolded(node: UOp) -> Iterable[str]:
    """A STORE in a loop that leads nowhere: one of its place, or that no REDUCE has folded."""
    for counter in node.ranges:
        if counter.arg.kind is AxisKind.REDUCE:
            yield f"loop {inline(counter)} is of kind REDUCE, but no REDUCE node folds over it"
        elif counter.arg.kind is AxisKind.LOOP and counter not in node.src[0].ranges:
            yield (
                f"every step of loop {inline(counter)} stores to the same element; fold the value "
                "over a REDUCE loop, or make the loop ORDERED"
            )
