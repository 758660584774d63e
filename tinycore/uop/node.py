"""`UOp`: the one node type of every graph.

Floor 1. A node is immutable and interned: building the same node twice gives the same object, so
equality is identity, and graphs share structure without any effort.

The table of living nodes (hash consing) holds them weakly, but a key holds the sources of its node.
So an entry has to go with its node, or no graph below it is ever freed, nor the device memory of
its buffers. No lock is taken: looking up, entering and removing what is dead are one step of the
dictionary each, whoever else is there. A node still has its sources when its entry goes and loses
them after that, so a graph that dies is taken down entry by entry, however deep it is.
"""

from __future__ import annotations

import itertools
import weakref
from _weakref import _remove_dead_weakref as remove_dead  # type: ignore[attr-defined]
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from tinycore.dtype import DType, Scalar, dtypes
from tinycore.uop.bounds import bounds_of
from tinycore.uop.op import AxisKind, Op, Sources
from tinycore.uop.operators import Operators
from tinycore.uop.shape import ELSEWHERE, DeviceLike, Shape, device_of, shape_of

Stack: TypeAlias = "list[tuple[UOp, Iterator[UOp]]]"
Condition: TypeAlias = "Callable[[UOp], bool]"
Key: TypeAlias = "tuple[Op, DType, Sources, Any]"


class Reference(weakref.ref["UOp"]):
    """A weak reference to a node that knows its key in the table."""

    __slots__ = ("key",)

    key: Key


nodes: Final[dict[Key, Reference]] = {}
"""Every living node, by its op, dtype, sources and argument."""


def enter(key: Key, node: UOp) -> UOp:
    """Enter a new node into the table until it dies, unless another thread was first."""
    reference = Reference(node, forget)
    reference.key = key
    while (first := nodes.setdefault(key, reference)) is not reference:
        if (found := first()) is not None:
            return found
        remove_dead(nodes, key)
    return node


def forget(reference: weakref.ref[UOp]) -> None:
    """Remove the entry of a node that died, unless it belongs to a newer equal node."""
    remove_dead(nodes, reference.key)  # type: ignore[attr-defined]


Fact = TypeVar("Fact")

blank: Final = object.__new__

printer: Callable[[UOp], str] = repr
"""Text of a node for `str`; text.py puts its own here, which parses back."""


BUFFER, DETACH, OWN, RANGE = Op.BUFFER, Op.DETACH, Op.OWN, Op.RANGE
SINK, UNIQUE = Op.SINK, Op.UNIQUE
"""Ops that are asked for often: Python 3.11 takes ten times as long to find a member of Op."""


class Axis(NamedTuple):
    """Identity of a RANGE: its number (a path, longer after every split) and its kind."""

    number: tuple[int, ...]
    kind: AxisKind


class Skew(NamedTuple):
    """Coupling of `axis` with `window_axis` by SKEW and UNSKEW; `size` is `axis`'s new length."""

    axis: int
    window_axis: int
    stride: int
    dilation: int
    size: int


class Launched:
    """An integer known at launch, as an index `expression`: see size.py."""

    __slots__ = ("expression",)
    expression: UOp


class Reads:
    """Sources of a value: BUFFERs, by numbers (an id is reused), and those of values before."""

    __slots__ = ("before", "buffers")

    def __init__(self, buffers: Iterable[UOp], *before: Reads) -> None:
        self.buffers = frozenset(buffer.src[1].arg for buffer in buffers)
        self.before = before

    def has(self, written: frozenset[int], known: dict[Reads, bool]) -> bool:
        """True if a BUFFER is among some; `known` are the answers so far."""
        stack = [self]
        while stack:
            reads = stack[-1]
            found = not written.isdisjoint(reads.buffers)
            if found or not (new := [r for r in reads.before if r not in known]):
                known[stack.pop()] = found or any(map(known.get, reads.before))
            else:
                stack += new
        return known[self]


class Held(NamedTuple):
    """The memory of a node that stays in the graph, which runs in one scope read in its place."""

    memory: UOp
    scope: object
    depends: Reads
    """The BUFFERs whose writes end this: that memory, and all that it came from."""


class UOp(Operators["UOp"]):
    """One node: an op, the dtype of its value, its sources, and an argument.

    Build nodes with `UOp(...)` or with the operators below. Never assign to the fields.
    """

    __slots__ = tuple(
        "__weakref__ _below _bloom _bounds _device _memory _normal _order _origin _past _ranges "
        "_shape _terms arg dtype op src".split()
    )

    op: Op
    dtype: DType
    src: Sources
    arg: Any
    _below: Sources  # all below a SINK, sources first
    _bloom: int  # what lacks bits of it is not above this node
    _bounds: tuple[Any, Any]
    _device: DeviceLike | None
    _memory: object  # the Buffer of a BUFFER, a weak reference of an ASSIGN, or what is Held
    _normal: int  # one bit per rule set that leaves this node as it is (rewrite.py)
    _order: tuple[Any, ...]  # where it goes among the terms of a sum (sums.py)
    _origin: tuple[str, str, int] | None  # where a user made it (origins.py)
    _past: object  # what memory was computed by (tensor/autograd/past.py)
    _ranges: frozenset[UOp]
    _shape: Shape | None
    _terms: tuple[dict[UOp, int], int]  # this index expression as a sum (sums.py)

    def __new__(  # noqa: PYI034  there are no subclasses
        cls, op: Op, dtype: DType, src: Sources = (), arg: Any = None
    ) -> UOp:
        """The unique node of these fields: the living one if there is one, else a new one."""
        return interned(op, dtype, src, arg)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return UOp, (self.op, self.dtype, self.src, self.arg)

    def __repr__(self) -> str:
        argument = "" if self.arg is None else f" {self.arg!r}"
        sources = ", ".join(s.op.name for s in self.src)
        return f"<UOp {self.op.name} {self.dtype!r}{argument} ({sources})>"

    def __str__(self) -> str:
        return printer(self)

    def __bool__(self) -> bool:
        if self.op is Op.CONST:
            return bool(self.arg)
        raise TypeError(f"the truth of {self!r} is not known before it is computed")

    # --- building

    @staticmethod
    def const(dtype: DType, value: Scalar) -> UOp:
        """A constant, its value converted to what the dtype can hold; lanes repeat it."""
        scalar = UOp(Op.CONST, dtype.scalar(), (), as_scalar(value, dtype))
        return scalar if dtype.count == 1 else UOp(Op.VECTORIZE, dtype, (scalar,) * dtype.count)

    @staticmethod
    def index(value: int) -> UOp:
        """A constant of dtype `index`."""
        return interned(Op.CONST, dtypes.index, (), value)

    @staticmethod
    def variable(name: str, least: int, greatest: int, dtype: DType = dtypes.index) -> UOp:
        """An integer given at launch, between `least` and `greatest` inclusive."""
        return UOp(Op.DEFINE_VAR, dtype, (), (name, least, greatest))

    @staticmethod
    def range(end: int | UOp, number: int | tuple[int, ...], kind: AxisKind = AxisKind.LOOP) -> UOp:
        """A loop counter from 0 below `end`."""
        path = number if isinstance(number, tuple) else (number,)
        return UOp(Op.RANGE, dtypes.index, (as_index(end),), Axis(path, kind))

    @staticmethod
    def sink(*src: UOp) -> UOp:
        """A root over `src`."""
        return UOp(Op.SINK, dtypes.void, src)

    @staticmethod
    def group(*statements: UOp) -> UOp:
        """Several statements as one; a single one as it is."""
        return statements[0] if len(statements) == 1 else UOp(Op.GROUP, dtypes.void, statements)

    def at(self, *place: UOp) -> UOp:
        """The INDEX of an element of memory; of a gated one, if a condition is given."""
        return interned(Op.INDEX, self.dtype, (self, *place))

    def load(self, dtype: DType, *alternative: UOp) -> UOp:
        """The value at an INDEX, in a type; the alternative where its gate is closed."""
        return interned(Op.LOAD, dtype, (self, *alternative))

    def store(self, value: UOp, argument: Any = None) -> UOp:
        """The statement that stores a value at an INDEX."""
        return interned(Op.STORE, dtypes.void, (self, value), argument)

    def after(self, *statements: UOp) -> UOp:
        """Memory as it is after some statements."""
        return interned(Op.AFTER, self.dtype, (self, *statements)) if statements else self

    def end(self, *loops: UOp) -> UOp:
        """A statement in some loops."""
        return interned(Op.END, dtypes.void, (self, *loops)) if loops else self

    def alu(self, op: Op, *others: UOp) -> UOp:
        """The node `op(self, *others)`, its dtype given by the op's row."""
        src = (self, *others)
        return interned(op, op.dtype_rule(src) or self.dtype, src)

    def replace(self, **changes: Any) -> UOp:
        """The same node with some of op, dtype, src and arg changed."""
        fields = {"op": self.op, "dtype": self.dtype, "src": self.src, "arg": self.arg}
        return UOp(**(fields | changes))

    def with_src(self, src: Sources) -> UOp:
        """The same node over other sources."""
        return self if src == self.src else interned(self.op, self.dtype, src, self.arg)

    def cast(self, dtype: DType) -> UOp:
        """The value converted to `dtype`, with as many lanes as it has."""
        target = dtype.vec(self.dtype.count) if dtype.count != self.dtype.count else dtype
        return self if self.dtype is target else UOp(Op.CAST, target, (self,))

    def bitcast(self, dtype: DType) -> UOp:
        """The same bits read as `dtype` of equal width."""
        return self if self.dtype is dtype else UOp(Op.BITCAST, dtype, (self,))

    def const_like(self, value: Scalar) -> UOp:
        """A constant of this node's dtype."""
        return UOp.const(self.dtype, value)

    def operand(self, other: UOp | Scalar | Launched) -> UOp:
        """`other` as an operand of the same dtype as this node."""
        if isinstance(other, UOp):
            return other
        return other.expression if isinstance(other, Launched) else self.const_like(other)

    def where(self, yes: UOp, no: UOp) -> UOp:
        """`yes` where this bool holds, else `no`."""
        return self.alu(Op.WHERE, yes, no)

    # --- facts, computed once per node

    @property
    def bounds(self) -> tuple[Any, Any]:
        """(least, greatest) value this node can take; the dtype's limits where nothing is known."""
        try:
            return self._bounds
        except AttributeError:
            return self.derive("_bounds", bounds_of)

    @property
    def shape_or_none(self) -> Shape | None:
        """The shape of a tensor-graph node, None for any other."""
        try:
            return self._shape
        except AttributeError:
            return self.derive("_shape", shape_of)

    @property
    def shape(self) -> Shape:
        """The shape of a tensor-graph node."""
        try:
            shape = self._shape
        except AttributeError:
            shape = self.derive("_shape", shape_of)
        assert shape is not None, f"{self!r} has no shape"
        return shape

    @property
    def device_or_none(self) -> DeviceLike | None:
        """The device of a tensor-graph node, or its group of devices; None where no source says."""
        try:
            return self._device
        except AttributeError:
            return self.derive("_device", device_of)

    @property
    def device(self) -> DeviceLike:
        """The device of a tensor-graph node, or its group of devices."""
        try:
            device = self._device
        except AttributeError:
            sources = () if self.op in ELSEWHERE else self.src[:1]
            device = getattr(sources[0], "_device", None) if sources else None
            if device is None:
                device = self.derive("_device", device_of)
            else:
                self._device = device
        assert device is not None, f"{self!r} has no device"
        return device

    @property
    def single_device(self) -> str:
        """The device of a node that is on one, as all are in kernels and after sharding."""
        device = self.device
        assert isinstance(device, str), f"{self!r} is on several devices"
        return device

    def derive(self, slot: str, rule: Callable[[UOp], Fact]) -> Fact:
        """Fill `slot` of this node and of all below by `rule`, sources first, without recursion."""
        for source in self.src:
            if not hasattr(source, slot):
                break
        else:
            fact = rule(self)
            setattr(self, slot, fact)
            return fact
        stack: Stack = []
        push, pop = stack.append, stack.pop
        node, sources = self, iter(self.src)
        while True:
            for source in sources:
                if not hasattr(source, slot):
                    push((node, sources))
                    node, sources = source, iter(source.src)
                    break
            else:
                fact = rule(node)
                setattr(node, slot, fact)
                if not stack:
                    return fact
                node, sources = pop()

    @property
    def vmin(self) -> Any:
        """The least value this node can take."""
        return self.bounds[0]

    @property
    def vmax(self) -> Any:
        """The greatest value this node can take."""
        return self.bounds[1]

    @property
    def extent(self) -> int:
        """The trip count of this RANGE, the greatest one where it varies."""
        return int(self.vmax) + 1

    @property
    def number(self) -> tuple[int, ...]:
        """The number of this RANGE: a path, longer after every split."""
        return self.arg.number  # type: ignore[no-any-return]

    @property
    def kind(self) -> AxisKind:
        """The kind of the loop of this RANGE: a plain one, lanes, threads, copies."""
        return self.arg.kind  # type: ignore[no-any-return]

    @property
    def is_fixed(self) -> bool:
        """True if the trip count of this RANGE is the same in every launch."""
        return self.src[0].op is Op.CONST

    @property
    def ranges(self) -> frozenset[UOp]:
        """The loop counters this node depends on, less those that something inside closed."""
        try:
            return self._ranges
        except AttributeError:
            return self.derive("_ranges", ranges_of)

    def toposort(self, enter: Condition | None = None) -> list[UOp]:
        """This node and all below it, sources first; does not go below nodes that fail `enter`.

        What is below a SINK is found once: kernels are gone through again and again.
        """
        if enter is not None or self.op is not SINK:
            return list(ordered(self, enter))
        try:
            below = self._below
        except AttributeError:
            below = self._below = tuple(ordered(self, None))[:-1]
        return [*below, self]

    def every(self, op: Op) -> list[UOp]:
        """The nodes of one op among this node and all below it, sources first."""
        return [node for node in self.toposort() if node.op is op]

    def substitute(self, replacements: dict[UOp, UOp], enter: Condition | None = None) -> UOp:
        """The graph with every key replaced by its value, sources first.

        Nodes that fail `enter` stay as they are, and so does what is below them only.
        """
        if not replacements:
            return self
        if (found := replacements.get(self)) is not None:
            return found
        if enter is None and self.op is SINK and hasattr(self, "_below"):
            return substituted(self, (*self._below, self), replacements)
        return substituted(self, ordered(self, enter, replacements), replacements, enter)


def held_by(node: UOp, scope: object) -> Held | None:
    """The memory that a node holds for the runs in a scope, or None."""
    held = node._memory
    return held if type(held) is Held and held.scope is scope else None


def substituted(
    root: UOp,
    order: Iterable[UOp],
    replacements: Mapping[UOp, UOp],
    enter: Condition | None = None,
) -> UOp:
    """`root.substitute(...)` along the known order of its graph, sources first."""
    new: dict[UOp, UOp] = dict(replacements)
    exchange(order, new, enter)
    return new.get(root, root)


def exchange(order: Iterable[UOp], new: dict[UOp, UOp], enter: Condition | None = None) -> None:
    """Add to some replacements those of all nodes above, along the known order of a graph."""
    moved, get = new.keys(), new.get
    for node in order:
        if moved.isdisjoint(node.src) or node in new:
            continue
        if enter is None or enter(node):
            src = node.src
            new[node] = interned(node.op, node.dtype, tuple(map(get, src, src)), node.arg)


def interned(op: Op, dtype: DType, src: Sources = (), arg: Any = None) -> UOp:
    """`UOp(...)` as a plain function, which is faster: for loops over whole graphs."""
    key = (op, dtype, src, arg if type(arg) is not float else arg.hex())  # argument_in_key
    reference = nodes.get(key)
    if reference is not None and (found := reference()) is not None:
        return found
    return new(key, arg)


def argument_in_key(argument: Any) -> Any:
    """An argument as the keys of the table have it.

    0.0 and -0.0 are equal keys, and NaN equals nothing: floats are keyed by their text. 1 == True
    == 1.0 do no harm, since the dtype is in the key.
    """
    return argument.hex() if type(argument) is float else argument


def new(key: Key, arg: Any) -> UOp:
    """A new node, unless another thread makes it first. A float differs in its key."""
    node = blank(UOp)
    node.op, node.dtype, node.src, _ = key
    node.arg = arg
    node._memory = None
    node._normal = 0
    node._origin = None
    reference = Reference(node, forget)
    reference.key = key
    return node if nodes.setdefault(key, reference) is reference else enter(key, node)


def ordered(root: UOp, enter: Condition | None, leaves: Collection[UOp] = ()) -> dict[UOp, None]:
    """A node and all below it, sources first; not what is below `leaves` or fails `enter`.

    Depth-first over iterators of sources: a node is looked at once for each of its users, and
    pushed once.
    """
    order: dict[UOp, None] = {}
    if root in leaves or not (enter is None or enter(root)):
        return {root: None}
    everywhere = enter is None and not leaves
    stack: Stack = []
    push, pop = stack.append, stack.pop
    node, sources = root, iter(root.src)
    while True:
        for s in sources:
            if s in order:
                continue
            src = s.src
            if src and (everywhere or (s not in leaves and (enter is None or enter(s)))):
                push((node, sources))
                node, sources = s, iter(src)
                break
            order[s] = None
        else:
            order[node] = None
            if not stack:
                return order
            node, sources = pop()


def not_normal(root: UOp, bit: int) -> dict[UOp, None]:
    """A node and all below it that lack a bit of `_normal`, sources first; none below others."""
    order: dict[UOp, None] = {}
    stack: Stack = []
    push, pop = stack.append, stack.pop
    node, sources = root, iter(root.src)
    while True:
        for s in sources:
            if s._normal & bit or s in order:
                continue
            push((node, sources))
            node, sources = s, iter(s.src)
            break
        else:
            order[node] = None
            if not stack:
                return order
            node, sources = pop()


def bloom(node: UOp) -> int:
    """The Bloom filter of a node and all below it, given those of its sources: by ids, which are
    multiples of the size of nodes, modulo a prime.
    """
    bits = 1 << id(node) % 509
    for source in node.src:
        bits |= source._bloom
    return bits


def candidates_above(roots: Sequence[UOp], nodes: Collection[UOp]) -> Sequence[UOp]:
    """The roots without those that have none of some nodes in their graphs, as far as their Bloom
    filters tell; all roots if there are few for each node, as a walk is quicker then.
    """
    return roots if 4 * len(nodes) >= len(roots) else likely_above(roots, nodes)


def likely_above(roots: Sequence[UOp], nodes: Collection[UOp]) -> list[UOp]:
    """The roots that may have some of the nodes in their graphs, as Bloom filters tell."""
    UOp.sink(*roots, *nodes).derive("_bloom", bloom)
    return [r for r in roots if any(n._bloom & ~r._bloom == 0 for n in nodes)]


def as_scalar(value: Scalar, dtype: DType) -> Scalar:
    """`value` as the Python type of the dtype's scalar; integers wrap to its width."""
    kind = dtype.kind
    if kind == "float":
        return float(value)
    if kind == "bool":
        return bool(value)
    number = int(value)
    if kind == "uint":
        return number & ((1 << dtype.bits) - 1)
    half = 1 << (dtype.bits - 1)
    return ((number + half) & (2 * half - 1)) - half


def as_index(value: int | UOp | Launched) -> UOp:
    """An index expression from an int, from what is known at launch, or from itself."""
    if isinstance(value, Launched):
        return value.expression
    return value if isinstance(value, UOp) else UOp.index(value)


counter = itertools.count()
VOID: Final = dtypes.void


@cache
def device_node(device: DeviceLike) -> UOp:
    """The DEVICE node of a name, or of a group."""
    return UOp(Op.DEVICE, dtypes.void, (), device)


def unique() -> UOp:
    """A new UNIQUE node, unlike all before it in this process."""
    number = next(counter)
    return new((UNIQUE, VOID, (), number), number)


def is_gradient_leaf(node: UOp) -> bool:
    """True for a detached node of one tensor alone: gradients end there, each in its own leaf."""
    return node.op is OWN and node.src[0].op is DETACH


def made_anew(like: UOp) -> UOp:
    """A new BUFFER of the same size and kind as another, with a fresh UNIQUE."""
    made = new((BUFFER, like.dtype, (like.src[0], unique()), like.arg), like.arg)
    made._shape, made._device = like.shape, like.device  # which would be found by a walk
    return made


CLOSING: Final = frozenset({Op.REDUCE, Op.ITERATE, Op.END, Op.MATRIX})
"""Ops that run the loops among their sources: whoever uses them is outside of these.

A MATRIX of a plan has its axes m, n and k among its sources, and a loop over tiles of sums if its
first operand is made of these, which it closes; its lanes and their elements it does not."""


def ranges_of(node: UOp) -> frozenset[UOp]:
    """The open loop counters below one node, given those of its sources."""
    found: frozenset[UOp] = frozenset()
    for source in node.src:
        more = source._ranges
        if more is not found and not more <= found:
            found = found | more if found else more
    if node.op is RANGE:
        return found | {node}
    if node.op in CLOSING:
        closed = [s for s in node.src[1:] if s.op is RANGE]
        if node.op is Op.MATRIX:
            kinds = (AxisKind.FRAGMENT, AxisKind.UNROLL)
            closed = [s for s in closed if s.arg.kind in kinds]
        return found.difference(closed)
    return found
