"""Placeholders: tensors inside of custom kernels, and the graph built from them.

Floor 5. A user's function gets a Placeholder for each tensor and returns what it stores. Here its
loops are closed, and what lowering, or the memory beyond a tensor's end, would not forgive is
refused.

So are races, parallel steps that store to one element. Where the index of a store can be foreseen,
more steps than elements are a race, and so are two of the first steps of each loop that meet; so
many are tried that a kernel is checked in less than a millisecond. What is loaded, as the index of
a histogram, nobody can foresee.
"""

# ruff: noqa: PLW0108  NumPy waits for the first kernel

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from tinycore._deferred import numpy
from tinycore.dtype import DType, Scalar, dtypes
from tinycore.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, VerifyError
from tinycore.render.base import pointer_of
from tinycore.schedule.ranges import flatten
from tinycore.uop.evaluate import ALU_PYTHON
from tinycore.uop.node import UOp, as_index
from tinycore.uop.op import COMPARISON, COMPOUND, SHIFTS, AxisKind, Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.shape import Shape
from tinycore.uop.symbolic import simplify
from tinycore.uop.text import inline
from tinycore.uop.verify import verify

Numbers: TypeAlias = "numpy.ndarray[Any, Any]"

MOST_TRIED_STEPS: Final = 1 << 14
"""Most steps of a kernel to try."""

ALIKE: Final = (Op.ADD, Op.SUB, Op.NEG, Op.MULACC, Op.FLOORDIV, Op.FLOORMOD, Op.AND, Op.OR, Op.XOR)
"""Ops of arrays as of numbers, beside comparisons and shifts."""
ARITHMETIC: Final[dict[Op, Callable[..., Any]]] = {
    **{op: ALU_PYTHON[op] for op in (*ALIKE, *SHIFTS, *COMPARISON)},
    Op.MUL: lambda a, b: a * b,
    Op.IDIV: lambda a, b: (abs(a) // abs(b)) * numpy.sign(a) * numpy.sign(b),
    Op.MOD: lambda a, b: numpy.fmod(a, b),
    Op.MAX: lambda a, b: numpy.maximum(a, b),
    Op.MIN: lambda a, b: numpy.minimum(a, b),
    Op.WHERE: lambda c, a, b: numpy.where(c, a, b),
    Op.CAST: lambda a: a,
}
"""Ops on the small integers that indices are."""


@lru_cache(256)
def races(stores: tuple[UOp, ...]) -> tuple[str, ...]:
    """Races between the stores of a kernel, as sentences; cached for the latest kernels."""
    return tuple(found_races(stores))


def found_races(stores: tuple[UOp, ...]) -> Iterator[str]:
    """`races`, without the cache."""
    met: dict[UOp, list[Numbers]] = {}
    for store in stores:
        index = inline(store.src[0].src[1])
        if is_crowded(store):
            yield (
                f"several steps of its loops store to one element, at index {index}; fold the "
                "value over a REDUCE loop, or make the loop ORDERED"
            )
            return
        places = places_of(store)
        if places is None:
            continue
        steps, found = places
        # Distinct pairs, sorted by element: one that is there twice has two steps.
        owners = numpy.unique(numpy.stack([found, steps]), axis=1)[0]
        if twice := owners[1:][owners[1:] == owners[:-1]].tolist():
            yield (
                f"two steps of its loops store to element {twice[0]}, at index {index}; fold the "
                "value over a REDUCE loop, or make the loop ORDERED"
            )
            return
        pointer = pointer_of(store.src[0])
        for others in met.get(pointer, []):
            if (both := numpy.intersect1d(owners, others)).size:
                yield (
                    f"two stores write element {both[0]} of slot {pointer.arg}, and nothing says "
                    "which comes last; store a value chosen by where(), or give them gates"
                )
                return
        met.setdefault(pointer, []).append(owners)


def parallel(store: UOp) -> list[UOp]:
    """The loops around a store whose steps come in any order."""
    return [r for r in store.ranges if r.arg.kind is AxisKind.LOOP]


def size_of(loop: UOp) -> int:
    """Most steps that a loop may have."""
    return int(loop.vmax) + 1


def is_crowded(store: UOp) -> bool:
    """True if a store without a gate has more steps than elements to store to."""
    _, place, *gate = store.src[0].src
    if gate or not is_foreseen(place):
        return False
    return bool(math.prod(map(size_of, parallel(store))) > place.vmax - place.vmin + 1)


def is_foreseen(node: UOp) -> bool:
    """True if a value depends on loop counters alone."""
    known = (Op.CONST, Op.RANGE, *ARITHMETIC)
    return all(n.op in known for n in node.toposort())


def places_of(store: UOp) -> tuple[Numbers, Numbers] | None:
    """For the first steps, the number of each among parallel ones and where it stores.

    None if it cannot be told.
    """
    _, place, *gate = store.src[0].src
    if not all(map(is_foreseen, (place, *gate))):
        return None
    loops = list(dict.fromkeys([*parallel(store), *store.ranges]))
    sizes = first_steps([size_of(loop) for loop in loops])
    counters = numpy.indices(sizes).reshape(len(sizes), math.prod(sizes))
    values = dict(zip(loops, counters, strict=True))
    count = len(parallel(store))
    numbers = numpy.arange(math.prod(sizes)) // math.prod(sizes[count:])
    found = numpy.broadcast_to(evaluated(place, values), numbers.shape)
    if not gate:
        return numbers, found
    kept = numpy.broadcast_to(evaluated(gate[0], values), numbers.shape).astype(bool)
    return numbers[kept], found[kept]


def first_steps(sizes: list[int]) -> list[int]:
    """Steps of each loop to try: equally many of each, as far as it has them."""
    left, chosen = MOST_TRIED_STEPS, dict.fromkeys(range(len(sizes)), 1)
    waiting = sorted(range(len(sizes)), key=sizes.__getitem__)
    for number, loop in enumerate(waiting):
        share = int(left ** (1 / (len(sizes) - number)) + 1e-6)
        chosen[loop] = min(sizes[loop], max(2, share))
        left = max(1, left // chosen[loop])
    return [chosen[loop] for loop in range(len(sizes))]


def evaluated(node: UOp, counters: dict[UOp, Numbers]) -> Numbers:
    """A foreseen value at each step."""
    known: dict[UOp, Any] = dict(counters)
    for part in node.toposort():
        if part.op is Op.CONST:
            known[part] = numpy.int64(part.arg)
        elif part not in known:
            known[part] = ARITHMETIC[part.op](*[known[s] for s in part.src])
    return numpy.asarray(known[node])


Index = int | UOp
Place = Index | tuple[Index, ...]
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

    def __getitem__(self, index: Place) -> UOp:
        """The element at one number or index expression per axis."""
        return self.load(index)

    def load(self, index: Place, gate: UOp | None = None, otherwise: Scalar = 0) -> UOp:
        """The element there; where `gate` is false, nothing is read: it is `otherwise`."""
        alternative = () if gate is None else (UOp.const(self.dtype, otherwise),)
        return self.place(index, gate).load(self.dtype, *alternative)

    def store(self, index: Place, value: UOp | Scalar, gate: UOp | None = None) -> UOp:
        """A store of a value there, where `gate` holds. Raises DTypeError for another dtype."""
        node = value if isinstance(value, UOp) else UOp.const(self.dtype, value)
        if node.dtype is not self.dtype:
            raise DTypeError(
                f"custom_kernel: a value of {node.dtype!r} stored to {self.dtype!r}; cast it"
            )
        return self.place(index, gate).store(node)

    def place(self, index: Place, gate: UOp | None = None) -> UOp:
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
    return UOp.sink(*[UOp.group(*inside).end(*nest) for nest, inside in nests.items()])


def stored_slots(sink: UOp) -> tuple[int, ...]:
    """The slots that a kernel stores to."""
    pointers = {pointer_of(n.src[0]) for n in sink.every(Op.STORE)}
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
