"""Custom kernels, and graphs as values: placeholders, calls, schedules.

Floor 5. A kernel written by hand stands in the graph like any other node. It waits for what its
tensors wait for, is fused with nothing, and is lowered, compiled and captured as the scheduler's
own kernels are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from tinycore._deferred import deferred
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, DTypeError, GradientError, ShapeError
from tinycore.tensor import graph
from tinycore.tensor.autograd.grad import Gradients, rule
from tinycore.tensor.checks import same_device
from tinycore.tensor.core import Core
from tinycore.tensor.interop.interop import Interop
from tinycore.tensor.storage.realization import graph_read, unrealized
from tinycore.tensor.storage.writes import show, target_of
from tinycore.uop.node import UOp, device_node
from tinycore.uop.op import Op

if TYPE_CHECKING:
    from tinycore.schedule.kernel import Kernel
    from tinycore.tensor.methods.placeholder import KernelFunction

# Imported at first use: only custom kernels need what checks and simplifies one.
kernel_from: Final[Callable[..., Kernel]] = deferred("tinycore.schedule.kernel:Kernel")
memory_of: Final[Callable[[UOp], UOp]] = deferred("tinycore.schedule.kernel:memory_of")
placeholder: Final = deferred("tinycore.tensor.methods.placeholder:Placeholder")
kernel_of: Final = deferred("tinycore.tensor.methods.placeholder:kernel_of")
stored_slots: Final = deferred("tinycore.tensor.methods.placeholder:stored_slots")

GradientFunction = Callable[..., Sequence[Any]]
PARAMETER = "parameter"
"""Mark of the UNIQUE of a placeholder's BUFFER, in place of a number."""


class Custom(Interop):
    """Kernels and calls by hand."""

    __slots__ = ()

    def custom_kernel(
        self,
        *lst: Self,
        fxn: KernelFunction,
        grad_fxn: GradientFunction | None = None,
    ) -> list[Self]:
        """The tensors after a kernel that `fxn` writes was applied to them.

        `fxn` gets a Placeholder for each tensor: `x[i, j]` is an element, `x.store((i, j), value)`
        a store, and `fxn` returns its stores. Loops are `UOp.range(size, number)`, with different
        numbers. Their steps may run in any order and at once, unless the axis kind is ORDERED. A
        REDUCE node folds a value over loops of kind REDUCE. A RECUR node is the value that each
        step of an ORDERED loop computes from that of the step before, an ITERATE node the value
        after the last step. Elements that are not stored to keep their values.

        A tensor that is stored to is written in place if it has memory of its own; a view, or a
        tensor that is not computed yet, is copied first and stays unchanged. The others may be
        anything.

        `grad_fxn(gradient, kernel)` gives the gradient of each tensor, or None: tensors or nodes.
        `kernel.src[1:]` are the nodes of the tensors as they were before. After a kernel that
        stores to several tensors it is called with a gradient for each, and `call=kernel`.

        Raises ArgumentError at the call for an illegal kernel, for an index outside of its tensor,
        and for tensors that share the memory that is stored to.

        >>> from tinycore.uop.node import UOp
        >>> def axpy(out, x, y):
        ...     i = UOp.range(out.size, 0)
        ...     return out.store(i, x[i] * 2 + y[i])
        >>> x, y = Tensor([1.0, 2.0, 3.0]), Tensor([10.0, 20.0, 30.0])
        >>> Tensor.empty(3).custom_kernel(x, y, fxn=axpy)[0].tolist()
        [12.0, 24.0, 36.0]
        """
        tensors = [self, *lst]
        same_device("custom_kernel", [t.device for t in tensors])
        slots = [placeholder(n, t.shape, t.dtype) for n, t in enumerate(tensors)]
        ast = kernel_of(fxn, slots)
        written = stored_slots(ast)
        sources = kernel_operands(tensors, written)
        named = (getattr(fxn, "__name__", "custom_kernel"),)
        kernel = UOp(Op.CUSTOM, dtypes.void, tuple(sources), kernel_from(ast, named, grad_fxn))
        results = list(tensors)
        for slot in written:
            node = graph.written(sources[slot], kernel)
            if (tensor := tensors[slot]).uop is sources[slot]:
                show(target_of(tensor, tensor.uop)[1], node)
            results[slot] = self._from_node(node)
        return results

    # --- graphs as values

    def as_param(self, slot: int) -> Self:
        """A placeholder with the shape, dtype and device of this tensor: argument `slot` of a call.

        It has no value. What is computed from placeholders is the body of a `call`.

        >>> x = Tensor([1.0, 2.0])
        >>> x.call(fxn=x.as_param(0) * 10).tolist()
        [10.0, 20.0]
        """
        if slot < 0:
            raise ArgumentError(f"as_param: slots are counted from 0, got {slot}")
        mark = UOp(Op.UNIQUE, dtypes.void, (), (PARAMETER, slot, self.shape))
        place = device_node(self.device)
        return self._from_node(
            graph.reshape(UOp(Op.BUFFER, self.dtype, (place, mark), self.numel()), self.shape)
        )

    def call(self, *lst: Self, fxn: Self | UOp, grad_fxn: GradientFunction | None = None) -> Self:
        """The value of a body for arguments: `fxn`, with tensors in place of its placeholders.

        This tensor is argument 0. Gradients flow as if the body had been written out here, unless
        `grad_fxn(gradient, call)` gives the gradient of each argument, or None: tensors or nodes.
        `call.src[1:]` are the nodes of the arguments, `call` itself is that of the result. Raises
        ArgumentError for a placeholder without an argument, ShapeError, DTypeError or DeviceError
        for one that does not fit.

        >>> x, y = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
        >>> body = x.as_param(0) * y.as_param(1) + 1
        >>> x.call(y, fxn=body).tolist(), y.call(y, fxn=body).tolist()
        ([4.0, 9.0], [10.0, 17.0])
        >>> turned = x.call(fxn=x.as_param(0), grad_fxn=lambda g, call: [g * -1])
        >>> turned.tolist(), turned.sum().gradient(x)[0].tolist()
        ([1.0, 2.0], [-1.0, -1.0])
        """
        body = fxn.uop if isinstance(fxn, Core) else fxn
        arguments = [self, *lst]
        value = body.substitute({n: argument_for(n, arguments) for n in parameters(body)})
        if grad_fxn is None:
            return self._from_node(value)
        own = value.alu(Op.VALUE)  # no view of an argument, which may be written
        return self._from_node(own)._called(grad_fxn, *arguments)

    def callify(self, *lst: Self) -> Self:
        """This tensor. A graph needs no wrapping to be compiled as a whole: `realize` does that."""
        return self

    def schedule_linear(self, *lst: Self) -> UOp:
        """A SINK over the KERNELs that `realize` would run, in the order in which it would.

        >>> [kernel.op.name for kernel in (Tensor([1.0, 2.0]) * 2).sum().schedule_linear().src]
        ['KERNEL']
        """
        return UOp.sink(*[item.kernel for item in self.schedule(*lst)])

    def linear_with_vars(self, *lst: Self) -> tuple[UOp, dict[str, int]]:
        """The result of `schedule_linear`, and the values of the variables that are bound."""
        form = graph_read(unrealized([self, *lst]))
        return self.schedule_linear(*lst), dict(form.values)


def kernel_operands(tensors: Sequence[Core], written: Sequence[int]) -> list[UOp]:
    """The operands of a kernel: memory to store to, and memory to read, by slot.

    Raises ArgumentError when two of the tensors stored to share memory.
    """
    sources = [t.uop for t in tensors]
    for slot in written:
        if not graph.is_memory(sources[slot]):
            tensor = tensors[slot]
            memory = graph.new_buffer(tensor.shape, tensor.dtype, tensor.device)
            sources[slot] = UOp(Op.ASSIGN, tensor.dtype, (memory, sources[slot]))
    targets = {memory_of(sources[slot]): slot for slot in written}
    if len(targets) < len(written):
        raise ArgumentError(
            f"custom_kernel: tensors {', '.join(map(str, written))} are stored to, and some of "
            "them are the same memory; pass clones"
        )
    for slot, node in enumerate(sources):
        if slot not in written and (memory_of(node) in targets or graph.is_constant(node)):
            sources[slot] = node.alu(Op.CONTIGUOUS)
    return sources


def parameters(body: UOp) -> list[UOp]:
    """The placeholders that a graph is computed from."""
    return [n for n in body.every(Op.BUFFER) if parameter_of(n) is not None]


def parameter_of(buffer: UOp) -> tuple[int, tuple[int, ...]] | None:
    """The slot and shape of a placeholder; None for memory."""
    mark = buffer.src[1].arg
    return mark[1:] if isinstance(mark, tuple) and mark[0] == PARAMETER else None


def argument_for(parameter: UOp, arguments: Sequence[Core]) -> UOp:
    """The argument of a call that takes the place of a placeholder, which is flat."""
    slot, shape = parameter_of(parameter) or (0, ())
    if slot >= len(arguments):
        raise ArgumentError(f"call: the body has a slot {slot}, there are {len(arguments)} tensors")
    node = arguments[slot].uop
    if node.shape != shape:
        raise ShapeError(f"call: slot {slot} is of shape {shape}, the tensor of {node.shape}")
    if node.dtype is not parameter.dtype:
        raise DTypeError(f"call: slot {slot} is {parameter.dtype!r}, the tensor {node.dtype!r}")
    same_device(f"call, slot {slot}", [parameter.device, node.device])
    return graph.reshape(node, parameter.shape)


@rule(Op.CUSTOM)
def of_custom(node: UOp, g: UOp) -> Gradients:
    """Gradients by the user's gradient function; `g` holds the results, each with its gradient."""
    kernel: Kernel = node.arg
    name = kernel.metadata[0]
    if kernel.gradient is None:
        raise GradientError(
            f"custom_kernel: {name} has no gradient; pass grad_fxn, or detach() its result"
        )
    by_target = {
        result.src[0]: gradient for result, gradient in zip(g.src[::2], g.src[1::2], strict=True)
    }
    results = [node.src[slot] for slot in stored_slots(kernel.ast)]
    found = [by_target.get(target, graph.full_like(target, 0)) for target in results]
    shown = node.with_src((kernel.ast, *node.src))
    if len(found) == 1:
        parts = kernel.gradient(found[0], shown)
    else:
        parts = kernel.gradient(*found, call=shown)
    return fitting(f"custom_kernel: the gradient of {name}", node.src, parts)


@rule(Op.CALL)
def of_call(node: UOp, g: UOp) -> Gradients:
    """Gradients by the function of a call."""
    return (None, *fitting("call: its gradient", node.src[1:], node.arg(g, node)))


def fitting(name: str, sources: Sequence[UOp], parts: Sequence[Core | UOp | None]) -> Gradients:
    """The gradient of each tensor. Raises GradientError for another number of them, or shape."""
    if len(parts) != len(sources):
        raise GradientError(
            f"{name} gave {len(parts)} results for {len(sources)} tensors; give None for those "
            "that get no gradient"
        )
    nodes = [part.uop if isinstance(part, Core) else part for part in parts]
    for node, source in zip(nodes, sources, strict=True):
        if node is not None and node.shape != source.shape:
            raise GradientError(
                f"{name} for a tensor of shape {source.shape} is of shape {node.shape}"
            )
    pairs = zip(nodes, sources, strict=True)
    return tuple([None if node is None else node.cast(source.dtype) for node, source in pairs])
