"""`Core`: the base of every tensor, with its node, its gradient and its lifetime.

Floor 5. `Tensor` is one class written in several files, one per subject, each building on those
before it: core, movement, joining, operands, elementwise, functions, powers, special, activations,
reduce, scan, creation, indexing, selection, sorting, linalg, windows, losses, composed, attention,
random, realize, inplace, interop, custom, image_products, multi, and tensor.
See docs/decisions/0015-one-tensor-class-in-a-chain.md.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final, Self

from tinycore.dtype import DType, DTypeLike, Scalar, dtypes, to_dtype
from tinycore.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    GradientError,
    IndexRangeError,
    SettingError,
    ShapeError,
    UnknownDevice,
)
from tinycore.tensor import graph
from tinycore.tensor.aliases import base_of_view
from tinycore.tensor.autograd import history, versions
from tinycore.tensor.autograd.grad import passes_gradient, still_there
from tinycore.tensor.checks import number_dtype, resolve_axis
from tinycore.tensor.interop.foreign_names import NO_DEVICES
from tinycore.tensor.methods import pixels
from tinycore.tensor.methods.data import Data, node_from_data
from tinycore.tensor.runtime import runtime
from tinycore.tensor.signatures import check_signatures, is_dtype_name
from tinycore.tensor.storage.change_tracking import (
    change_sets,
    record_changes,
    record_made,
    scope,
    undo,
)
from tinycore.tensor.storage.liveness import buffers_of_parameters, tensors_shown_in, while_walking
from tinycore.tensor.storage.storage import Storage, View, is_shared, view_in, view_of
from tinycore.tensor.storage.writes import in_own_memory, show, target_of
from tinycore.uop import origins
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp, device_node
from tinycore.uop.op import Op
from tinycore.uop.shape import DeviceLike, Shape, names_of
from tinycore.uop.size import greatest_shape

traits: Final = attrgetter("shape", "dtype", "device")
"""The facts that a tensor and its gradient share."""


class Core:
    """A tensor's identity: `uop`, its value as a node; `grad`, filled by `backward`."""

    __slots__ = tuple("__weakref__ _asked _grad _is_seen _requires_grad _view".split())

    _asked: weakref.ref[UOp]
    """The node of a tensor that asked for a gradient and does not any more."""
    _grad: Self | None
    _is_seen: bool
    """True once somebody has read a gradient that a replay has left."""
    _requires_grad: bool | None
    _view: Storage | View
    """The storage that it shows, or its view of one."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_signatures(cls, Core)

    def __init__(
        self,
        data: Data | Core,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: bool | None = None,
    ) -> None:
        """Make a tensor of a number, nested list, bytes, path, NumPy array, node or tensor.

        Bytes and the content of a file are elements of the dtype as they are, of uint8 by default.
        `requires_grad` True asks `backward` for a gradient, False refuses one, None leaves it open.
        Of a tensor, that is the gradient of the new one's own uses; none flows on to the other.
        Raises ShapeError for ragged lists, DTypeError for what no dtype can hold.
        """
        target = None if dtype is None else to_dtype(dtype)
        source = data if isinstance(data, Core) else None
        if isinstance(data, Core):
            data = data.uop
        if isinstance(data, UOp):
            place = canonical(device) if device is not None else data.device
            node = data if data.device == place else data.alu(Op.COPY, device_node(place))
            node = node if target is None else node.cast(target)
        else:
            node = node_from_data(data, canonical(device), target)
        self._enter(source._view if source is not None and node is source.uop else view_of(node))
        if requires_grad and source is not None and not graph.is_constant(node):
            self._become(graph.leaf(node))
        if requires_grad is not None:
            self.requires_grad_(requires_grad)

    @property
    def uop(self) -> UOp:
        """The value as a node of the graph."""
        return self._view.value

    def _enter(self, view: Storage | View) -> None:
        """Show something of a storage, as one of its living tensors."""
        if origins.are_recorded():
            origins.note_origin(view.value)
        self._grad = None
        self._requires_grad = None
        self._view = view
        if change_sets:
            record_made(self)
        key, views = id(self), view.storage.views
        views[key] = weakref.ref(self, partial(views.pop, key))

    def _move(self, view: Storage | View) -> None:
        """Show something else, of this or another storage."""
        for log in undo.logs:
            log.views.setdefault(self, self._view)
        if change_sets:
            record_changes([self])
        key, former, views = id(self), self._view.storage.views, view.storage.views
        views[key] = weakref.ref(self, partial(views.pop, key))
        self._view = view
        if former is not views:
            former.pop(key, None)

    def _become(self, node: UOp) -> None:
        """Take another node as value; still a view of the same storage where that has it."""
        self._move(view_in(self._view.storage, node) or view_of(node))

    def _settle(self) -> Storage:
        """Its storage, which it leaves if it is a part of what no other tensor shows."""
        storage = self._view.storage
        if self._view is not storage and len(storage.tensors()) == 1:
            self._move(view_of(self.uop))
        return self._view.storage

    @property
    def _shown(self) -> UOp:
        """The node whose former content is this tensor at earlier times: if it asks for a gradient
        anew, whatever it shows, as its uses count that were there when it asked before.
        """
        return graph.below_own(self.uop) if hasattr(self, "_asked") else self.uop

    @classmethod
    def from_uop(cls, node: UOp) -> Self:
        """The tensor of a graph node.

        >>> x = Tensor([1, 2])
        >>> Tensor.from_uop((x + 1).uop).tolist()
        [2, 3]
        """
        return cls._from_node(node)

    @classmethod
    def _from_node(cls, node: UOp) -> Self:
        """`from_uop` without a check of arguments."""
        self = object.__new__(cls)
        self._enter(view_of(node))
        return self

    def _as_view(self, node: UOp) -> Self:
        """A tensor of elements of this one: a write to either shows in the other."""
        result = object.__new__(type(self))
        result._enter(view_in(self._view.storage, node) or view_of(node))
        return result

    def __repr__(self) -> str:
        grad = None if self.grad is None else summary(self.grad.uop)
        return f"<Tensor {summary(self.uop)} on {self.device} with grad {grad}>"

    __hash__ = object.__hash__

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
    def device(self) -> DeviceLike:
        """Name of the device that holds or computes it; of several, a tuple of names."""
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
        """True if the dtype is a float."""
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
    def grad(self) -> Self | None:
        """Gradient that `backward` added up for this tensor, of its shape; None before."""
        if (found := self._grad) is not None:
            found._is_seen = True
        return found

    @grad.setter
    def grad(self, value: Self | None) -> None:
        if value is not None and traits(value) != traits(self):
            raise GradientError(
                "grad: a gradient has the shape, dtype and device of its tensor: "
                f"{traits(self)}, got {traits(value)}; reshape, cast or move it"
            )
        if own := scope.owner:
            own.note_gradient(self)
        self._grad = value

    @property
    def requires_grad(self) -> bool | None:
        """True asks `backward` for a gradient, False refuses one, None leaves it open."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool | None) -> None:
        self.requires_grad_(value)

    @property
    def is_param(self) -> bool:
        """True if an optimizer should train it: unless `requires_grad` is False."""
        return self.requires_grad is not False

    @is_param.setter
    def is_param(self, value: bool) -> None:
        self.requires_grad_(value)

    def is_param_(self, is_param: bool = True) -> Self:
        """Mark as a parameter of optimizers, or not; returns itself.

        >>> x = Tensor([1.0])
        >>> x.is_param, x.is_param_(False).is_param
        (True, False)
        """
        return self.requires_grad_(is_param)

    def requires_grad_(self, requires_grad: bool | None = True) -> Self:
        """Ask for a gradient, or refuse it; returns itself.

        A constant that asks for one moves into memory of its own: equal constants are one node. A
        computed or detached tensor, or a part of one, gets the gradient of its own uses from then
        on, not of equal ones.
        Raises GradientError for a dtype that is no float.

        >>> weight, mask = Tensor([2.0]).requires_grad_(), Tensor([1.0])
        >>> _ = (weight * mask).sum().backward()
        >>> weight.grad.tolist(), mask.grad
        ([1.0], None)
        """
        if not requires_grad:
            if self._requires_grad and base_of(self.uop).op is not Op.OWN:  # whose uses tell it
                self._asked = weakref.ref(self.uop)
        elif not dtypes.is_float(self.dtype):
            raise GradientError(
                f"requires_grad: only float tensors have gradients, got {self.dtype!r}"
            )
        elif graph.is_constant(self.uop):
            _, storage = target_of(self, self.uop)
            show(storage, in_own_memory(storage.base))
        elif not self._requires_grad and getattr(self, "_asked", object)() is not self.uop:
            self._ask_alone()  # else its earlier uses count again
        self._requires_grad = None if requires_grad is None else bool(requires_grad)
        return self

    @while_walking
    def _ask_alone(self) -> None:
        """Make this tensor a node of its own where equal values may be the same node: a leaf,
        unless a gradient flows on from it to a tensor that asks for one.

        A copy gets memory, whose former content is known after a write. What shows all of some
        memory stays, unless a tensor that it is a view of may have another such view, or one of an
        equal graph has its value.
        """
        node, base = self.uop, base_of_view(self.uop)
        below = versions.ordered_through(node, passes_gradient)
        tensors = [t for t in tensors_shown_in(below) if t is not self]
        asking = [t for t in tensors if t.requires_grad]
        if node.op is Op.OWN and not any(t.uop is node for t in asking):
            return  # it asks anew
        is_whole = base_of(node) is base
        has_twins = bool(tensors) or any(n.arg == graph.EQUAL for n in versions.known_as(base))
        ended = {m for n in below if not graph.is_memory(base) for m in still_there(n)}
        # a gradient that ended at realized values is told where it would flow on to what asks
        if asking or (ended and ended.intersection(buffers_of_parameters(ended))):
            self._become(graph.own(node))
        elif has_twins or not (is_whole and is_shared(base)):
            self._become(graph.leaf(node))
        elif graph.is_copy(base):
            show(self._view.storage, in_own_memory(base.alu(Op.DETACH)))
        else:
            history.begin(base)

    # --- identity in the graph

    def _called(self, gradient: Callable[..., Any], *arguments: Core) -> Self:
        """This value with a custom gradient: `gradient(g, node)` gives that of each argument."""
        return self._from_node(graph.called(self.uop, [x.uop for x in arguments], gradient))

    def detach(self) -> Self:
        """The same value, through which no gradient flows.

        >>> x = Tensor([3.0], requires_grad=True)
        >>> (x * x.detach()).sum().gradient(x)[0].tolist()
        [3.0]
        """
        return self._as_view(self.uop.alu(Op.DETACH))

    def contiguous(self, arg: object = None) -> Self:
        """This tensor in row-major memory; a copy if it shows elements otherwise.

        `arg`, a hint to tinygrad's scheduler, has no effect here.

        >>> x = Tensor([[1, 2], [3, 4]]).T.contiguous().realize()
        >>> x.contiguous() is x, x.tolist()
        (True, [[1, 3], [2, 4]])
        """
        node = graph.below_own(self.uop)
        base = base_of(node)
        parts = base.src if base.op is Op.MULTI else (base,)
        in_order = {base_of(part).op for part in parts} <= {Op.CONTIGUOUS, Op.ASSIGN}
        if in_order or graph.is_copy(base) or graph.is_buffer(base):
            return self
        source = base_of_view(node)
        if (
            is_shared(source)
            or source.op is Op.CONST
            or base is not base_of((storage := self._settle()).value)
        ):
            return self._from_node(self.uop.alu(Op.CONTIGUOUS))
        show(storage, storage.value.alu(Op.CONTIGUOUS))
        return self

    def contiguous_backward(self) -> Self:
        """The same value; its gradient is made contiguous."""
        return self._from_node(self.uop.alu(Op.CONTIGUOUS_BACKWARD))

    def cast(self, dtype: DTypeLike) -> Self:
        """Every element converted: to an integer truncates, to bool is x != 0. A type of images,
        `dtypes.imagef((height, width))`, keeps it in one. Raises DTypeError and ShapeError.

        >>> x = Tensor([1.9, -1.9, 0.0])
        >>> x.cast("int32").tolist(), x.cast(dtypes.bool).tolist()
        ([1, -1, 0], [True, True, False])
        """
        node = pixels.cast(self.uop, dtype)
        return self if node is self.uop else self._from_node(node)

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
        result = self._from_node(graph.bitcast(self.uop, target))
        result._view.storage.refusal = (
            f"write: a bitcast of {self.dtype!r} to {target!r} is no view of the bytes that it was "
            "made of. Write to those, as in x.assign(new.bitcast(x.dtype)), or to a copy: clone()"
        )
        return result

    def const_like(self, value: Scalar, dtype: DTypeLike | None = None) -> Self:
        """A constant of the same shape and device; it takes no memory.

        >>> Tensor([[1, 2]]).const_like(7).tolist()
        [[7, 7]]
        """
        target = self.dtype if dtype is None else to_dtype(dtype)
        number_dtype("const_like", value, target)
        return self._from_node(graph.full_like(self.uop, value, target))

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
        return self._from_node(self.uop.alu(op, *[x.uop for x in src]))


check_signatures(Core, Core)


def canonical(device: DeviceLike | None) -> DeviceLike:
    """The full name of a device or of several; the default one for None. Raises UnknownDevice."""
    if device is None:
        return runtime().default_device()
    if device == ():
        raise DeviceError("() names no device; a tensor needs at least one")
    try:
        return runtime().canonicalize(device)
    except (SettingError, UnknownDevice):
        kind = names_of(device)[0].partition(":")[0].lower()
        if kind in NO_DEVICES:
            raise UnknownDevice(f"{device!r} is no device; here it is {NO_DEVICES[kind]}") from None
        if is_dtype_name(kind):
            raise UnknownDevice(f"{device!r} is a dtype, no device: x.cast({device!r})") from None
        raise


def one_device(name: str, device: DeviceLike | None) -> str:
    """The full name of a device; the default one for None. Raises DeviceError for several."""
    place = canonical(device)
    if isinstance(place, str):
        return place
    raise DeviceError(f"{name}: needs one device, got {place}; `shard` the result")


def summary(node: UOp) -> str:
    """One node in a few words, as `repr` of a tensor shows it."""
    base = base_of(node)
    shown = base if base.op in (Op.BUFFER, Op.ASSIGN) else node
    detail = runtime().describe(base) if base.op is Op.BUFFER else None
    return f"<UOp {node.device} {node.shape} {node.dtype.name} ({shown.op!r}, {detail})>"
