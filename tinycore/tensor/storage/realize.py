"""Realization methods: realize, read back, assign, move between devices.

Floor 5. What runs the graph is behind `tinycore.tensor.runtime`. After it has run, every living
tensor whose graph contains something computed now sees the memory that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial, reduce
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Self

from tinycore._deferred import deferred, numpy
from tinycore.dtype import Scalar, dtypes, to_numpy_dtype
from tinycore.errors import DTypeError, GradientError, ShapeError, TinycoreError
from tinycore.tensor import graph
from tinycore.tensor.autograd import history
from tinycore.tensor.autograd.grad import gradients, passes_gradient, still_there
from tinycore.tensor.autograd.history import source_of
from tinycore.tensor.autograd.versions import BY_CALL, NOBODY, made_of, ordered_through
from tinycore.tensor.checks import repeats_to, same_device
from tinycore.tensor.core import Core, canonical
from tinycore.tensor.interop.layout import COPIES, moved_from, show_memory
from tinycore.tensor.methods.random import Random
from tinycore.tensor.runtime import HostArray, runtime
from tinycore.tensor.storage.liveness import (
    buffers_of_parameters,
    buffers_shown,
    give_gradients,
    replace_nodes,
    tensors_shown_in,
)
from tinycore.tensor.storage.realization import (
    Owners,
    choose_retention,
    compute,
    graph_read,
    materialize,
    unrealized,
    unshare,
    with_waiting,
)
from tinycore.tensor.storage.storage import view_of
from tinycore.tensor.storage.writes import overwrite, target_of
from tinycore.uop.bindings import known
from tinycore.uop.host_bytes import decode
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp, device_node, is_gradient_leaf
from tinycore.uop.op import Op
from tinycore.uop.shape import DeviceLike
from tinycore.uop.size import is_size

if TYPE_CHECKING:
    from tinycore.schedule.items import ScheduleItem


offered: Final[Callable[..., Any]] = deferred("tinycore.device.discovery:offered")
MOST_SHOWN = 1 << 26
"""Most bytes that are copied from a device to be printed, of which a thousand numbers are."""


class Realization(Random):
    """Everything that computes, writes or differentiates."""

    __slots__ = ()

    # --- computing

    def realize(self, *lst: Self) -> Self:
        """Compute this tensor and others now: their graphs become buffers, constants stay.

        >>> x = Tensor([1.0, 2.0]) + 1
        >>> x.realize().tolist()
        [2.0, 3.0]
        """
        compute_each({t: None if t._requires_grad is False else NOBODY for t in (self, *lst)})
        return self

    @staticmethod
    def _realize_for_call(tensors: Iterable[Core]) -> None:
        """Realize what a captured call returns or is given: a gradient that this ends is refused,
        whether a tensor asks for one or not.
        """
        compute_each(dict.fromkeys(tensors, BY_CALL))

    def kernelize(self, *lst: Self) -> Self:
        """Partition the graph into kernels without running them; consumers load the results.

        May be called repeatedly, to choose the borders between kernels.

        >>> total = (Tensor([1.0, 2.0]) * 2).sum().kernelize()
        >>> total.item()
        6.0
        """
        tensors = [self, *lst]
        form, _ = with_waiting(unrealized(tensors))
        if roots := form.roots:
            replaced = with_identities(runtime().kernelize(roots, choose_retention))
            history.end(replaced, form)
            replace_nodes(replaced, {id(tensor) for tensor in tensors})
        return self

    def schedule(self, *lst: Self) -> list[ScheduleItem]:
        """The kernels that `realize` would run, in an order that respects their dependencies.

        >>> total = (Tensor([1.0, 2.0]) * 2).sum()
        >>> len(total.schedule())
        1
        """
        return runtime().schedule(graph_read(unrealized([self, *lst])))

    # --- reading back

    def _host_array(self) -> HostArray:
        """The elements in the bytes of `to_numpy_dtype`, as a new array."""
        node = self.uop
        if base_of(node).op is not Op.BUFFER:
            if not self.numel():
                return numpy.empty(self.shape, to_numpy_dtype(self.dtype))
            while graph.is_memory(node := self.uop) and not graph.is_buffer(node):
                compute(lambda: unrealized([self]))  # and what another thread writes meanwhile
            if not graph.is_buffer(node):
                node = materialize(self)
        if (base := base_of(node)).op is Op.BUFFER:
            return runtime().to_host(base).reshape(self.shape)
        found = numbers_shown(node)  # of a symbolic size: a slice of larger memory
        assert found is not None
        return found.reshape(known(self.uop).shape)

    def numpy(self) -> HostArray:
        """The elements as a new NumPy array; bfloat16 and fp8 become float32.

        >>> Tensor([[1, 2], [3, 4]]).numpy()
        array([[1, 2],
               [3, 4]], dtype=int32)
        """
        return decode(self._host_array(), self.dtype)

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers; a number for a tensor with no axes.

        >>> Tensor([[1, 2], [3, 4]]).tolist(), Tensor(5).tolist()
        ([[1, 2], [3, 4]], 5)
        """
        return self.numpy().tolist()

    def item(self) -> Scalar:
        """The one element as a Python number. Raises ShapeError when there are more or fewer.

        >>> Tensor([[2.5]]).item()
        2.5
        """
        if self.numel() != 1:
            raise ShapeError(f"item: needs exactly one element, got shape {self.shape}")
        value: Scalar = self.numpy().reshape(()).item()
        return value

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if not dtypes.is_int(self.dtype):
            raise DTypeError(f"index: only integers name positions, got {self.dtype!r}")
        return int(self.item())

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise ShapeError(
                f"bool: a tensor of shape {self.shape} is not one truth; use .any() or .all()"
            )
        return bool(self.item())

    def __repr__(self) -> str:
        """Its elements where they are computed and can be read, else the node that it is."""
        size = self.nbytes()
        try:
            shown = None if is_size(size) or size > MOST_SHOWN else numbers_shown(self.uop)
        except TinycoreError:  # as of NULL, which computes nothing, and inside of a capture
            shown = None
        if shown is None:
            return super().__repr__()
        text = numpy.array2string(decode(shown, self.dtype), separator=", ", prefix="Tensor(")
        shape = f", shape={self.shape}" if "..." in text or not shown.size else ""
        return f"Tensor({text}{shape}, dtype={self.dtype.name}, device={self.device})"

    def graph(self) -> Any:
        """The graph of this tensor as a picture in a notebook, and as text elsewhere.

        Its `save(path)` writes an SVG file. It comes with the package tiny-viz. Nothing is
        computed.
        """
        return offered("tinycore.viz", "graph", "viz")(self)

    def __format__(self, spec: str) -> str:
        """As the number that a tensor of one element holds, where a format is given.

        >>> f"{Tensor([1.0, 2.0]).mean():.3f}"
        '1.500'
        """
        return format(self.item(), spec) if spec else str(self)

    # --- devices and copies

    def to(self, device: DeviceLike | None) -> Self:
        """The tensor on a device; itself when it is there already, or for None.

        >>> x = Tensor([1, 2])
        >>> x.to(x.device) is x, x.to("PYTHON").device
        (True, 'PYTHON')
        """
        own = self.uop.device
        if device is None or device == own or (target := canonical(device)) == own:
            return self
        node = graph.on_device(self.uop, target)
        moved = node if node is not self.uop else node.alu(Op.COPY, device_node(target))
        result = self._from_node(moved)
        result.requires_grad = self.requires_grad
        return result

    def to_(self, device: DeviceLike | None) -> Self:
        """Move this tensor, and its gradient, to a device; returns itself."""
        if (moved := self.to(device).uop) is not self.uop:
            self._move(view_of(moved))
        if self.grad is not None:
            self.grad.to_(device)
        return self

    def clone(self, device: DeviceLike | None = None) -> Self:
        """A copy in memory of its own, unaffected by writes to this tensor; of the gradient as
        well, if there is one.

        >>> x = Tensor([1, 2])
        >>> y = x.clone()
        >>> x[0] = 9
        >>> x.tolist(), y.tolist()
        ([9, 2], [1, 2])
        """
        source = self.to(device)
        result = self._from_node(graph.copied(source.uop) if self.numel() else source.uop)
        result.requires_grad = self.requires_grad
        result.grad = None if self.grad is None else self.grad.clone(device)
        return result

    # --- writing

    def replace(self, x: Self) -> Self:
        """Take over value and dtype of another tensor of the same shape; writes no memory.

        This tensor is a view of the other one then, through which gradients flow on to it.
        Raises ShapeError for another shape.

        >>> x = Tensor([1, 2])
        >>> x.replace(Tensor([0.5, 1.5])).tolist()
        [0.5, 1.5]
        """
        if x.shape != self.shape:
            raise ShapeError(f"replace: {x.shape} in place of {self.shape}")
        if x is self:
            return self  # a view stays one
        self._move(x._view)
        return self

    def _take_over(self, x: Self, is_alone: bool) -> None:
        """Take over the memory of another tensor if no third one has it, else a copy of the value.

        `is_alone` tells that nobody will use the other one itself.
        """
        others = {*x._view.storage.tensors()} - {x, self}
        if is_alone and x._requires_grad is None and not others:
            self.replace(x)
        else:
            self._move(view_of(x.detach().clone().uop))

    def assign(self, x: Self | Scalar | Sequence[Any]) -> Self:
        """Write a value, broadcast, into the memory of this tensor; returns itself.

        A slice of a buffer writes into that buffer. A tensor with no memory yet takes over the
        value. Raises ShapeError, DTypeError or DeviceError when the value does not fit,
        AliasError where this tensor shows an element more than once.

        >>> x = Tensor([1, 2, 3])
        >>> _ = x[1:].assign(7)
        >>> x.tolist(), x.assign(x * 2).tolist()
        ([1, 7, 7], [2, 14, 14])
        """
        value = x if isinstance(x, Realization) else self._ufix_nested(x)
        if value.dtype is not self.dtype:
            raise DTypeError(
                f"assign: a value of {value.dtype!r} into {self.dtype!r}; cast it first"
            )
        node, shape = value.uop, self.uop.shape
        if node.device != self.uop.device:
            node = graph.on_device(node, self.device)
            same_device("assign", [self.device, node.device])
        if node.shape != shape and not repeats_to(node.shape, shape):
            raise ShapeError(
                f"assign: shapes {shape} and {value.shape} do not fit: a value has the shape "
                "of its place, or is repeated to it"
            )
        node = graph.broadcast_to(node, shape)
        if not self.numel():
            return self
        if node is self.uop:
            _, storage = target_of(self, node)  # raises where an element is shown more than once
            if all(history.shows_data(t.uop) for t in storage.tensors()):
                return self
        overwrite(self, node)
        return self

    # --- differentiating

    def gradient(self, *targets: Self, gradient: Self | None = None) -> list[Self]:
        """The derivatives of this number with respect to targets.

        Zeros for a target that it does not depend on. `gradient` is the gradient of a later scalar
        with respect to this tensor, which then may have any shape. Raises GradientError if it is
        missing then, if a dtype is not a float, or if gradients end at a tensor that was computed
        from a target and asked for a gradient when the target had not.

        >>> x = Tensor([1.0, 2.0, 3.0])
        >>> (first,) = (x**3).sum().gradient(x)
        >>> first.tolist(), first.sum().gradient(x)[0].tolist()
        ([3.0, 12.0, 27.0], [6.0, 12.0, 18.0])
        >>> (x * 2).gradient(x, gradient=Tensor([1.0, 0.0, 5.0]))[0].tolist()
        [2.0, 0.0, 10.0]
        """
        seed = self._seed_gradient(gradient)
        for tensor in targets:
            if not dtypes.is_float(tensor.dtype):
                raise GradientError(
                    f"gradient: only floats have gradients, got a target of {tensor.dtype!r}"
                )
        nodes = ordered_through(self.uop)
        asked = buffers_shown(targets)
        history.check_ended(self.uop, nodes, lambda _: asked, asked)
        found = derivatives(self.uop, nodes, seed, targets)
        check_leaves(nodes, [t for t in targets if t not in found])
        return [self._from_node(found.get(t, graph.full_like(t.uop, 0))) for t in targets]

    def backward(self, gradient: Self | None = None) -> Self:
        """Add derivatives of this scalar to `grad` of living float tensors it was computed from.

        Only of those that require a gradient; if none does so explicitly, of all that do not refuse
        it; all of them get it or none, whatever ends it. Raises GradientError as `gradient` does.

        >>> x, w = Tensor([1.0, 2.0]), Tensor([3.0, 4.0], requires_grad=True)
        >>> _ = (x * w).sum().backward()
        >>> w.grad.tolist(), x.grad
        ([1.0, 2.0], None)
        """
        seed = self._seed_gradient(gradient)
        nodes = ordered_through(self.uop)
        tensors = tensors_shown_in(nodes)
        explicit = [t for t in tensors if t.requires_grad]
        chosen = explicit or [t for t in tensors if t.requires_grad is None]
        history.check_ended(self.uop, nodes, buffers_of_parameters)
        if not explicit:
            may_ask = partial(buffers_of_parameters, asks=attrgetter("is_param"))
            history.check_ended(self.uop, nodes, may_ask, mark=BY_CALL)
        found = derivatives(self.uop, nodes, seed, chosen)
        given = [tensor for tensor in chosen if tensor in found]
        sums = [found[t] if t.grad is None else t.grad.uop + found[t] for t in given]
        give_gradients(given, [*map(self._from_node, sums)])
        return self

    def _seed_gradient(self, gradient: Self | None) -> UOp:
        """The gradient of this tensor itself: 1, or the given one. Raises GradientError."""
        if not dtypes.is_float(self.dtype):
            raise GradientError(f"backward: only floats have gradients, got {self.dtype!r}")
        if gradient is None:
            if self.numel() != 1:
                raise GradientError(
                    f"backward: a tensor of shape {self.shape} is not one number; reduce it, as by "
                    "sum() or mean(), or pass `gradient`"
                )
            is_plain = graph.is_buffer(self.uop) and made_of(base_of(self.uop)) is None
            if is_plain and not any(
                t.requires_grad for t in tensors_shown_in(ordered_through(self.uop))
            ):
                raise GradientError(
                    "backward: this tensor is plain memory, its graph is gone; differentiate "
                    "before realize()"
                )
            return graph.full_like(self.uop, 1)
        if gradient.shape != self.shape:
            raise GradientError(
                f"backward: a gradient of shape {gradient.shape} for a tensor of shape {self.shape}"
            )
        return gradient.uop.cast(self.dtype)


def compute_each(owners: Owners) -> None:
    """Compute tensors, each in memory of its own."""
    if len(owners) > 1:
        unshare(owners)
    compute(lambda: unrealized(owners), owners)


def with_identities(replaced: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
    """Kernels to be run, whose stores are told from those of the same kernel run again."""
    found: dict[UOp, UOp] = {}
    for node in UOp.sink(*replaced.values()).toposort()[:-1]:
        sources = tuple([found[source] for source in node.src])
        is_new = node.op is Op.ASSIGN and node.arg is None
        found[node] = graph.written(sources[0], sources[1]) if is_new else node.with_src(sources)
    return {node: found[new] for node, new in replaced.items()}


def derivatives(
    root: UOp, nodes: Collection[UOp], seed: UOp, targets: Sequence[Core]
) -> dict[Core, UOp]:
    """The gradient of every tensor that a node depends on, also through writes in place; `nodes`
    are all below it, through memory.

    That of one that requires a gradient counts what memory held before it was written to, too.
    Raises GradientError where content is needed that is gone, or `realize` ended the way.
    """
    equal, before = history.parts_in(nodes)
    wanted: dict[Core, tuple[list[UOp], set[UOp]]] = {}
    for target in targets:
        found = equal(target)
        earlier = before(target._shown) if target.requires_grad or not found else ()
        parts = list(dict.fromkeys([*found, *earlier]))
        # none flows from a version of memory, written when nobody asked, to the one before it
        ends = {n for n in map(source_of, parts) if n.op is Op.ASSIGN and passes_gradient(n)}
        wanted[target] = parts, ends.union(found if len(found) > 1 else ())
    found_at = gradients(root, seed, [node for parts, _ in wanted.values() for node in parts])
    totals: dict[Core, UOp] = {}
    for target, (parts, ends) in wanted.items():
        at = gradients(root, seed, parts, ends) if ends and len(parts) > 1 else found_at
        terms = [graph.reshape(at[node], target.shape) for node in parts if node in at]
        if terms:
            totals[target] = reduce(UOp.__add__, terms)
    results = UOp.sink(*totals.values()).substitute(history.values_in(nodes))  # in one walk
    history.check(results)
    return dict(zip(totals, results.src, strict=True))


def check_leaves(nodes: Iterable[UOp], targets: Sequence[Core]) -> None:
    """Raises GradientError for a target from which a leaf among some nodes was computed."""
    for leaf in filter(is_gradient_leaf, nodes) if targets else ():
        below = ordered_through(graph.below_own(leaf), passes_gradient)
        ended = {m for node in below for m in still_there(node)}
        for target in targets:
            if target.uop in below or ended.intersection(buffers_shown([target])):
                raise GradientError(
                    f"gradient: it ends at a tensor of shape {leaf.shape}, which asked for a "
                    f"gradient when the target of shape {target.shape} that it was computed from "
                    "had not. Call target.requires_grad_() before the other is computed"
                )


def numbers_shown(node: UOp) -> HostArray | None:
    """The elements of a view of realized memory, with present sizes; None for anything else."""
    base = moved_from(node)
    if base.op is Op.BUFFER:
        whole = runtime().to_host(base)
    elif base.op is Op.MULTI and (parts := parts_shown(base)):
        whole = parts[0] if base.arg is None else numpy.concatenate(parts, base.arg)
    else:
        return None
    found = show_memory(known(node), whole.reshape(known(base).shape), COPIES)
    if found is None or (found.size == whole.size and found.flags.c_contiguous):
        return found
    return numpy.array(found)


def parts_shown(node: UOp) -> list[HostArray]:
    """The elements on each device, one device where all hold the same; [] unless all is memory."""
    parts = node.src if node.arg is not None else node.src[:1]
    found = [numbers for part in parts if (numbers := numbers_shown(part)) is not None]
    return found if len(found) == len(parts) else []
