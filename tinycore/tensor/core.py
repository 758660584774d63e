"""What every tensor is: a node of the graph, a gradient, and a place among the living.

Floor 5. `Tensor` is one class written in several files, one per subject, each building on those
before it: core, movement, joining, operands, elementwise, functions, powers, special, activations,
reduce, scan, creation, indexing, selection, sorting, linalg, decompositions, elimination, spectral,
digest, windows, losses, composed, attention, random, realize, inplace, interop, custom, images,
multi, and tensor.
See docs/decisions/0015-one-tensor-class-in-a-chain.md.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Container, Sequence
from itertools import compress, repeat
from operator import attrgetter, call, is_not
from typing import Any, Final, Self

from tinycore.dtype import DType, DTypeLike, Scalar, dtypes, to_dtype
from tinycore.errors import (
    AliasError,
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    GradientError,
    IndexRangeError,
    SettingError,
    ShapeError,
    UnknownDevice,
)
from tinycore.tensor import graph, pixels
from tinycore.tensor.aliases import AliasIndex, base_of_view
from tinycore.tensor.change_tracking import change_sets, record_changes
from tinycore.tensor.checks import number_dtype, resolve_axis
from tinycore.tensor.data import Data, node_from_data
from tinycore.tensor.foreign_names import NO_DEVICES
from tinycore.tensor.grad import LEAF
from tinycore.tensor.history import history
from tinycore.tensor.runtime import runtime
from tinycore.tensor.signatures import check_signatures
from tinycore.tensor.views import Value, is_detached, place_in
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp, device_node
from tinycore.uop.op import Op
from tinycore.uop.shape import Shape
from tinycore.uop.size import Size, greatest_shape

living: Final[dict[int, weakref.ref[Core]]] = {}
"""Every tensor that somebody holds, by id, in order of creation."""


alias_index: Final = AliasIndex(living.values)
"""The same by what they show."""


class Core:
    """A tensor's identity: `uop`, what it computes; `grad`, filled by `backward`."""

    __slots__ = ("__weakref__", "_value", "grad", "requires_grad", "uop")

    uop: UOp
    grad: Self | None
    requires_grad: bool | None
    _value: Value | None
    """What this tensor shares with its views, or with what it is a view of, before it is memory."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_signatures(cls, Core)

    def __init__(
        self,
        data: Data | Core,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> None:
        """Make a tensor of a number, nested list, bytes, path, NumPy array, node or tensor.

        Bytes and the content of a file are elements of the dtype as they are, of uint8 by default.
        `requires_grad` True asks `backward` for a gradient, False refuses one, None leaves it open.
        Raises ShapeError for ragged lists, DTypeError for what no dtype can hold.
        """
        target = None if dtype is None else to_dtype(dtype)
        source = data if isinstance(data, Core) else None
        if isinstance(data, Core):
            data = data.uop
        if isinstance(data, UOp):
            place = canonical(device) if device is not None else data.device
            node = (
                data
                if data.device == place
                else UOp(Op.COPY, data.dtype, (data, device_node(place)))
            )
            node = node if target is None else node.cast(target)
        else:
            node = node_from_data(data, canonical(device), target)
        self._enter(node)
        if source is not None and node is source.uop:
            source._share(self)
        if requires_grad is not None:
            self.requires_grad_(requires_grad)

    def _enter(self, node: UOp) -> None:
        """Take `node` as value and register among the living."""
        self.uop = node
        self.grad = None
        self.requires_grad = None
        self._value = None
        key = id(self)
        living[key] = reference = weakref.ref(self, lambda _: living.pop(key, None))
        alias_index.note(reference)

    def _become(self, node: UOp) -> None:
        """Take another node as value."""
        if change_sets:
            record_changes([self])
        reference = living[id(self)]
        alias_index.note(reference)  # before it is so: an interrupt must not come between
        self.uop = node
        alias_index.note(reference)  # and after it: another thread may have looked at it between

    @classmethod
    def from_uop(cls, node: UOp) -> Self:
        """The tensor of a graph node.

        >>> x = Tensor([1, 2])
        >>> Tensor.from_uop((x + 1).uop).tolist()
        [2, 3]
        """
        self = object.__new__(cls)
        self._enter(node)
        return self

    def _as_view(self, node: UOp) -> Self:
        """A tensor of elements of this one: what is written to either shows in the other."""
        result = self.from_uop(node)
        self._share(result)
        return result

    def _share(self, view: Core) -> None:
        """Note that a tensor shows this one; views of memory are known by their nodes."""
        value = self._value
        if value is None:
            if is_shared(base_of_view(self.uop)):
                return
            self._value = value = Value(self.uop, living[id(self)])
        view._value = value
        value.enter(living[id(view)])

    def __repr__(self) -> str:
        grad = None if self.grad is None else summary(self.grad.uop)
        return f"<Tensor {summary(self.uop)} on {self.device} with grad {grad}>"

    def __hash__(self) -> int:
        return id(self)

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentTypeError("len: a tensor of shape () has no first axis")
        return self.shape[0]

    # --- facts

    @property
    def shape(self) -> Shape:
        """Sizes of the axes.

        >>> x = Tensor([[1, 2, 3], [4, 5, 6]])
        >>> x.shape, x.ndim, x.numel(), Tensor(7).shape
        ((2, 3), 2, 6, ())
        """
        return self.uop.shape

    @property
    def dtype(self) -> DType:
        """Type of the elements.

        >>> Tensor([1.0]).dtype, Tensor([1]).dtype, Tensor([True]).dtype
        (dtypes.float32, dtypes.int32, dtypes.bool)
        """
        return self.uop.dtype

    @property
    def device(self) -> str:
        """Name of the device that holds or computes it; of several, their names joined."""
        return self.uop.device

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def max_shape(self) -> Shape:
        """The greatest sizes that the axes can have, where a Variable gives them at launch."""
        return greatest_shape(self.shape)

    def max_numel(self) -> int:
        """The number of elements in `max_shape`."""
        return math.prod(self.max_shape)

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def nbytes(self) -> int:
        """Bytes of all elements.

        >>> x = Tensor([[1, 2, 3], [4, 5, 6]])
        >>> x.element_size(), x.nbytes()
        (4, 24)
        """
        return self.numel() * self.element_size()

    def is_floating_point(self) -> bool:
        """Whether the dtype is a float."""
        return dtypes.is_float(self.dtype)

    def size(self, dim: int | None = None) -> int | Shape:
        """The shape, or the size of one axis. Raises IndexRangeError for an axis it has not.

        >>> x = Tensor([[1, 2, 3], [4, 5, 6]])
        >>> x.size(), x.size(1)
        ((2, 3), 3)
        """
        if dim is None:
            return self.shape
        if not self.shape:
            raise IndexRangeError(f"size: axis {dim} of a tensor with no axes")
        return self.shape[resolve_axis("size", dim, self.ndim)]

    # --- gradients: who wants one

    @property
    def is_param(self) -> bool:
        """Whether an optimizer should train it: true unless `requires_grad` is False."""
        return self.requires_grad is not False

    @is_param.setter
    def is_param(self, value: bool) -> None:
        self.requires_grad_(value)

    def is_param_(self, is_param: bool = True) -> Self:
        """Mark as trained or not; returns itself.

        >>> x = Tensor([1.0])
        >>> x.is_param, x.is_param_(False).is_param
        (True, False)
        """
        return self.requires_grad_(is_param)

    def requires_grad_(self, requires_grad: bool | None = True) -> Self:
        """Ask for a gradient, or refuse it; returns itself.

        A constant that asks for one moves into memory of its own: equal constants are one node.
        Raises GradientError for a dtype that is no float.

        >>> weight, mask = Tensor([2.0]).requires_grad_(), Tensor([1.0])
        >>> _ = (weight * mask).sum().backward()
        >>> weight.grad.tolist(), mask.grad
        ([1.0], None)
        """
        if requires_grad and not dtypes.is_float(self.dtype):
            raise GradientError(
                f"requires_grad: only float tensors have gradients, got {self.dtype!r}"
            )
        if requires_grad and graph.is_constant(self.uop):
            _, base, tensors = self._target(self.uop)
            self._show(tensors, base, in_own_memory(base))
        self.requires_grad = requires_grad
        return self

    # --- identity in the graph

    def detach(self) -> Self:
        """The same value, through which no gradient flows.

        >>> x = Tensor([3.0], requires_grad=True)
        >>> (x * x.detach()).sum().gradient(x)[0].tolist()
        [3.0]
        """
        return self._as_view(UOp(Op.DETACH, self.dtype, (self.uop,)))

    def contiguous(self, arg: object = None) -> Self:
        """This tensor, kept in memory row by row; a copy where it shows elements otherwise.

        `arg`, which tinygrad's users pass to its scheduler, says nothing here.

        >>> x = Tensor([[1, 2], [3, 4]]).T.contiguous().realize()
        >>> x.contiguous() is x, x.tolist()
        (True, [[1, 3], [2, 4]])
        """
        base = base_of(self.uop)
        in_order = base.op in (Op.CONTIGUOUS, Op.ASSIGN) or graph.is_copy(base)
        if in_order or graph.is_buffer(base):
            return self
        whole = self.uop if self._value is None else self._value.base
        source = base_of_view(whole)
        if base is not base_of(whole) or is_shared(source) or source.op is Op.CONST:
            return self.from_uop(UOp(Op.CONTIGUOUS, self.dtype, (self.uop,)))
        tensors: list[Core] = [self] if self._value is None else self._value.tensors()
        self._show(tensors, whole, UOp(Op.CONTIGUOUS, self.dtype, (whole,)))
        return self

    def contiguous_backward(self) -> Self:
        """The same value; its gradient is made contiguous."""
        return self.from_uop(UOp(Op.CONTIGUOUS_BACKWARD, self.dtype, (self.uop,)))

    def cast(self, dtype: DTypeLike) -> Self:
        """Every element converted: to an integer truncates, to bool is x != 0. A type of images,
        `dtypes.imagef((height, width))`, keeps it in one. Raises DTypeError and ShapeError.

        >>> x = Tensor([1.9, -1.9, 0.0])
        >>> x.cast("int32").tolist(), x.cast(dtypes.bool).tolist()
        ([1, -1, 0], [True, True, False])
        """
        node = pixels.cast(self.uop, dtype)
        return self if node is self.uop else self.from_uop(node)

    def bitcast(self, dtype: DTypeLike) -> Self:
        """The same bytes as another dtype; the last axis grows or shrinks when widths differ.

        Raises DTypeError when the last axis does not hold a whole number of the new elements, and
        between bool and anything else.

        >>> hex(Tensor([1.0]).bitcast("int32").item())
        '0x3f800000'
        >>> Tensor([1, 2], dtype="int32").bitcast("int16").shape
        (4,)
        """
        target = to_dtype(dtype)
        if target is self.dtype:
            return self
        if dtypes.bool in (target, self.dtype):
            raise DTypeError(f"bitcast: {self.dtype!r} and {target!r}; cast a bool, or compare")
        old, new = self.dtype.itemsize, target.itemsize
        if old != new and (not self.shape or self.shape[-1] * old % new):
            raise DTypeError(
                f"bitcast: the last axis of shape {self.shape} in {self.dtype!r} does not hold a "
                f"whole number of {target!r}"
            )
        result = self.from_uop(graph.bitcast(self.uop, target))
        result._value = Value(
            result.uop,
            living[id(result)],
            f"write: a bitcast of {self.dtype!r} to {target!r} is no view of the bytes that it was "
            "made of. Write to those, as in x.assign(new.bitcast(x.dtype)), or to a copy: clone()",
        )
        return result

    def _overwrite(self, value: UOp, at: UOp | None = None) -> None:
        """Write a value where this tensor is, or in the part `at` of it, for all that show it.

        What is not computed yet and is written to in part becomes memory by that. Raises AliasError
        where an element is shown more than once, ShapeError for a part of what has no fixed size.
        """
        node = self.uop if at is None else at
        place, base, tensors = self._target(node)
        if place is not node and is_detached(node, base):
            value = UOp(Op.DETACH, value.dtype, (value,))
        if graph.is_memory(base):
            whole_fixed(base.shape)
            memory = node if graph.is_memory(node) else base
            change = value if memory is node else graph.insert(memory, place, value)
            mark = LEAF if any(t.requires_grad for t in tensors) else None
            self._show(tensors, base, graph.assign(memory, change, mark))
        elif graph.is_copy(base):  # not memory yet, but of this tensor and its views alone
            whole_fixed(base.shape)
            new = graph.copied(value) if place is base else graph.insert(base, place, value)
            self._show(tensors, base, new)
        elif place is base:
            self._show(tensors, base, UOp(Op.VALUE, value.dtype, (value,)))
        else:
            whole_fixed(base.shape)
            memory = in_own_memory(base)
            change = graph.insert(memory, place.substitute({base: memory}), value)
            self._show(tensors, base, graph.assign(memory, change))

    def _target(self, node: UOp) -> tuple[UOp, UOp, list[Core]]:
        """Where in what a view of this tensor is, and all tensors that show it.

        Raises AliasError where an element is shown more than once, or as other bytes.
        """
        base = base_of_view(self.uop)
        if is_shared(base):
            return place_in(node, base), base, alias_index.of(base)
        value = self._value
        if value is not None and value.refusal is not None:
            raise AliasError(value.refusal)
        if value is None or len(tensors := value.tensors()) == 1:
            if value is not None:
                place_in(self.uop, value.base)  # refused though what it was made of is gone
            self._value = None
            return place_in(node, self.uop), self.uop, [self]
        return place_in(node, value.base), value.base, tensors

    def _show(self, tensors: list[Core], base: UOp, new: UOp) -> None:
        """Put a new value in the place of what some tensors show."""
        history.mark_pending(new)
        new = graph.reshape(new, base.shape)
        value = self._value
        lasting = None if value is None or is_shared(base_of_view(new)) else value
        nodes = [t.uop for t in tensors]
        become(tensors, [new if n is base else view_over(n, base, new) for n in nodes])
        for tensor in tensors:
            tensor._value = lasting
        if lasting is not None:
            lasting.base = new

    def const_like(self, value: Scalar, dtype: DTypeLike | None = None) -> Self:
        """A constant of the same shape and device; it takes no memory.

        >>> Tensor([[1, 2]]).const_like(7).tolist()
        [[7, 7]]
        """
        target = self.dtype if dtype is None else to_dtype(dtype)
        number_dtype("const_like", value, target)
        return self.from_uop(graph.full_like(self.uop, value, target))

    def alu(self, op: Op, *src: Self) -> Self:
        """An op of the table applied element by element.

        Raises ArgumentError for a wrong number of operands, ShapeError when their shapes differ.

        >>> from tinycore.uop.op import Op
        >>> Tensor([1, 2]).alu(Op.ADD, Tensor([10, 20])).tolist()
        [11, 22]
        """
        if len(src) + 1 != op.arity:
            raise ArgumentError(f"alu: {op.name} takes {op.arity} operands, got {len(src) + 1}")
        if any(x.uop.shape != self.uop.shape for x in src):
            listed = " and ".join(str(x.shape) for x in (self, *src))
            raise ShapeError(f"alu: the operands of {op.name} have shapes {listed}")
        return self.from_uop(self.uop.alu(op, *[x.uop for x in src]))


check_signatures(Core, Core)


def is_shared(base: UOp) -> bool:
    """Whether all tensors over a node show the same elements: it is memory, or only theirs."""
    return graph.is_memory(base) or graph.is_copy(base)


def in_own_memory(node: UOp) -> UOp:
    """A value in memory of its own."""
    return graph.store_value(graph.new_memory_like(node), node)


def whole_fixed(shape: Shape) -> None:
    """Raises ShapeError for a tensor of symbolic shape, which cannot be written to."""
    if any(isinstance(n, Size) for n in shape):
        raise ShapeError(
            f"assign: a tensor of shape {shape} has no memory of a fixed size. Write into a part "
            "of one of the greatest size, as in memory[:, start:stop].assign(value), and slice that"
        )


def canonical(device: str | None) -> str:
    """The full name of a device; the default one for None. Raises UnknownDevice."""
    if device is None:
        return runtime().default_device()
    try:
        return runtime().canonicalize(device)
    except (SettingError, UnknownDevice):
        kind = str(device).partition(":")[0].lower()
        if kind in NO_DEVICES:
            raise UnknownDevice(f"{device!r} is no device; here it is {NO_DEVICES[kind]}") from None
        raise


def summary(node: UOp) -> str:
    """One node in a few words, as `repr` of a tensor shows it."""
    base = base_of(node)
    shown = base if base.op in (Op.BUFFER, Op.ASSIGN) else node
    detail = runtime().describe(base) if base.op is Op.BUFFER else None
    return f"<UOp {node.device} {node.shape} {node.dtype.name} ({shown.op!r}, {detail})>"


def live_tensors() -> list[Core]:
    """Every tensor that somebody holds, in order of creation."""
    found: list[Any] = [*map(call, list(living.values()))]
    return [*compress(found, map(is_not, found, NONE))]


def waiting_tensors() -> list[Core]:
    """Those of them that are more than one buffer under some shape."""
    found = live_tensors()
    others = compress(found, map(is_not, map(OP, found), BUFFER))  # most are plain memory
    return [t for t in others if base_of(t.uop).op is not Op.BUFFER]


OP: Final = attrgetter("uop.op")
NONE, BUFFER = repeat(None), repeat(Op.BUFFER)
"""Each as often as it is asked for."""


def become(tensors: Sequence[Core], nodes: Sequence[UOp]) -> None:
    """Give tensors other nodes as values, all or none: no interrupt comes between two of them."""
    if change_sets:
        record_changes(tensors)
    references = [living[id(tensor)] for tensor in tensors]
    alias_index.note(*references)
    deque(map(setattr, tensors, repeat("uop"), nodes), maxlen=0)  # one step, as all of it is C
    alias_index.note(*references)


def view_over(view: UOp, base: UOp, new: UOp) -> UOp:
    """A view of `base` as the same view of `new`, with one RESHAPE at most next to that.

    Else each write would add two of them, and no step would be the graph of the step before.
    """
    changed, content = {base: new}, base_of(base)
    node = view
    while node is not base and node.src:
        if node.op is Op.RESHAPE and base_of(node) is content:
            changed[node] = graph.reshape(base_of(new), node.shape)
            break
        node = node.src[0]
    return view.substitute(changed)


def replace_nodes(replacements: dict[UOp, UOp], owners: Container[int] = frozenset()) -> None:
    """Put every replaced node's value in its place, in the graphs of all living tensors.

    Where tensors that are no views of each other come to show the same memory by that, it belongs
    to those among `owners`, which are ids; the others keep the value.
    """
    changed = {old: new for old, new in replacements.items() if old is not new}
    tensors = waiting_tensors() if changed else []
    if len(tensors) == 1 and (alone := tensors[0]).uop in changed:
        alone._value = None
        alone._become(changed[alone.uop])
    elif tensors:
        values = shared_values(tensors)
        before = [t.uop for t in tensors]
        bases = [v.base for v in values]
        after = graph.replace_nodes(UOp.sink(*before, *bases), changed).src
        moved = dict(zip(values, zip(bases, after[len(before) :], strict=True), strict=True))
        found: dict[Core, UOp] = {}
        for tensor, old, new in zip(tensors, before, after, strict=False):
            if (own := tensor._value) is not None and own in moved:
                new = old.substitute(dict([moved[own]]))  # a view goes where all of them go
            if new is not old and tensor.uop is old:  # else its own thread has moved on
                found[tensor] = new
        memory = owned_apart(found, moved, owners)
        become(list(found), list(found.values()))
        for node in found.values():
            history.mark_pending(base_of_view(node))
        for value, (_, base) in moved.items():
            value.base = base
        for tensor in memory:
            tensor._value = None


def owned_apart(
    found: dict[Core, UOp], moved: dict[Value, tuple[UOp, UOp]], owners: Container[int]
) -> list[Core]:
    """Leave memory to one tensor and its views, which are given; others keep the value alone.

    `found` and `moved`, what tensors and their common values are to be, change by that.
    """
    arrived: dict[UOp, list[Core]] = {}
    for tensor, node in found.items():
        if is_shared(base := base_of_view(node)) and not is_shared(base_of_view(tensor.uop)):
            arrived.setdefault(base, []).append(tensor)
    left: list[Core] = []
    apart: set[Value] = set()
    for tensors in arrived.values():
        owner = next((t for t in tensors if id(t) in owners), tensors[0])
        for tensor in tensors:
            own = tensor._value
            if tensor is owner or (own is not None and own is owner._value):
                left.append(tensor)
            elif own is None or own not in moved:
                found[tensor] = UOp(Op.VALUE, tensor.dtype, (found[tensor],))
            else:
                apart.add(own)
    for own in apart:
        old, new = moved[own]
        moved[own] = old, UOp(Op.VALUE, new.dtype, (new,))
    for tensor in found:
        if tensor._value is not None and tensor._value in apart:
            found[tensor] = tensor.uop.substitute(dict([moved[tensor._value]]))
    return left


def shared_values(tensors: list[Core]) -> list[Value]:
    """What several of some tensors show; one that nothing else shows any more is left to itself."""
    found: dict[Value, None] = {}
    for tensor in tensors:
        value = tensor._value
        if value is None or value in found:
            continue
        if len(value.tensors()) > 1:
            found[value] = None
        elif value.refusal is None:
            tensor._value = None
        else:
            value.base = tensor.uop
            found[value] = None
    return list(found)
