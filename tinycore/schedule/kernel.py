"""`Kernel`, the argument of a KERNEL node: a computation and the memory it uses.

Floor 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from tinycore.dtype import ImageDType, dtypes
from tinycore.schedule.limits import is_image
from tinycore.uop.node import UOp, unique
from tinycore.uop.op import Op
from tinycore.uop.size import greatest_shape
from tinycore.uop.text import register_argument


@dataclass(frozen=True)
class Kernel:
    """One launch: its graph, and where it came from.

    `ast` is a SINK over ENDs of STOREs (see `uop.verify`, stage "kernel"), or a COPY. `metadata`
    names the operations of the tensor graph that were fused into it, the last one first. A kernel
    that a user wrote (CUSTOM) may have a `gradient`, which the frontend calls.
    """

    ast: UOp
    metadata: tuple[str, ...] = ()
    gradient: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        names = f" ({', '.join(self.metadata)})" if self.metadata else ""
        return f"<Kernel {self.name}{names}>"

    @property
    def name(self) -> str:
        """A readable name from the kernel's loops, e.g. reduce_1024_256."""
        return kernel_name(self.ast)

    @cached_property
    def slots(self) -> int:
        """The number of buffers it takes."""
        return slot_count(self.ast)

    @property
    def without_gradient(self) -> Kernel:
        """The same launch without its gradient."""
        return self if self.gradient is None else Kernel(self.ast, self.metadata)


register_argument(Kernel, lambda kernel: (kernel.ast, kernel.metadata))


def kernel_name(ast: UOp) -> str:
    """The kind of a kernel and the extents of its loops, outputs first."""
    if ast.op is Op.COPY:
        return "copy"
    nodes = ast.toposort()
    outputs: dict[UOp, None] = {}
    for end in ast.src:
        outputs.update(dict.fromkeys(end.src[1:] if end.op is Op.END else ()))
    reduced = dict.fromkeys(r for n in nodes if n.op is Op.REDUCE for r in n.src[1:])
    kind = "reduce" if reduced else "elementwise"
    if any(n.op is Op.SCAN for n in nodes):
        kind = "scan"
    if any(n.op is Op.RECUR for n in nodes):
        kind = "recurrence"
    sizes = [extent(r) for r in (*outputs, *reduced)]
    return "_".join([kind, *(sizes or ["1"])])


def custom_of(node: UOp) -> UOp | None:
    """The CUSTOM that computes a node, if one does."""
    custom = node.src[1] if node.op is Op.ASSIGN else node
    return custom if custom.op is Op.CUSTOM else None


def slot_count(ast: UOp) -> int:
    """The number of buffers a kernel takes."""
    return sum(n.op is Op.DEFINE_GLOBAL for n in ast.toposort())


def extent(counter: UOp) -> str:
    """The trip count of a RANGE as text."""
    end = counter.src[0]
    return str(end.arg) if end.op is Op.CONST else "n"


def numel(node: UOp) -> int:
    """The elements of a tensor-graph node; the upper bound of a symbolic size."""
    return math.prod(greatest_shape(node.shape))


def nbytes(node: UOp) -> int:
    """The bytes of a tensor-graph node."""
    return numel(node) * node.dtype.itemsize


def memory_of(node: UOp) -> UOp:
    """The BUFFER or BUFFER_VIEW behind a stored node."""
    while node.op in OVER_MEMORY:
        node = node.src[0]
    return node


OVER_MEMORY: Final = frozenset({Op.ASSIGN, Op.RESHAPE})


def with_slots(ast: UOp, first: Iterable[int]) -> tuple[UOp, tuple[int, ...]]:
    """A kernel whose slots are numbered anew, without gaps, and the former number of each: of those
    that it uses, some come first."""
    pointers = {int(n.arg): n for n in ast.toposort() if n.op is Op.DEFINE_GLOBAL}
    slots = tuple([p for p in dict.fromkeys((*first, *pointers)) if p in pointers])
    moved = {pointers[p]: pointers[p].replace(arg=n) for n, p in enumerate(slots) if n != p}
    return ast.substitute(moved), slots


def slot(memory: UOp, number: int) -> UOp:
    """The pointer through which a kernel reaches the memory in one of its slots."""
    pointer = image_of(memory) or memory.dtype.ptr(numel(memory))
    return UOp(Op.DEFINE_GLOBAL, pointer, (), number)


def image_of(memory: UOp) -> ImageDType | None:
    """The image of stored memory, None for plain memory."""
    memory = memory_of(memory)
    if not isinstance(memory.arg, ImageDType) or not is_image(memory.arg, memory.single_device):
        return None
    return memory.arg


def new_buffer(node: UOp) -> UOp:
    """A BUFFER for the value of a node, on its device; an image if one was requested."""
    device = UOp(Op.DEVICE, dtypes.void, (), node.device)
    asked = node.op is Op.CONTIGUOUS and isinstance(node.arg, ImageDType)
    return UOp(Op.BUFFER, node.dtype, (device, unique()), node.arg if asked else numel(node))


def new_memory(node: UOp) -> UOp:
    """A BUFFER as large as a node, under its shape."""
    return with_shape(new_buffer(node), node.shape)


def with_shape(memory: UOp, shape: tuple[int, ...]) -> UOp:
    """Flat memory in the shape of the value stored there; symbolic sizes at their upper bound."""
    whole = greatest_shape(shape)
    if memory.shape != whole:
        memory = UOp(Op.RESHAPE, memory.dtype, (memory,), whole)
    if whole == shape:
        return memory
    return UOp(Op.SHRINK, memory.dtype, (memory,), tuple([(0, n) for n in shape]))
