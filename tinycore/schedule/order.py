"""The kernels of a graph in the order in which they may run, with the memory they run on.

Floor 3. A KERNEL's sources are all it depends on, so any order that puts sources first will do,
and a graph, having no cycles, has one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tinycore.device.buffer import Buffer
from tinycore.errors import ArgumentError
from tinycore.schedule.kernel import image_of, memory_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


class Buffers:
    """The device memory of each BUFFER node, as a mapping. `buffers` is the one instance.

    It is kept on the node: what is looked up at every launch should cost no more, and goes with it.
    """

    def get(self, node: UOp) -> Buffer | None:
        """The memory of a node; None where it has none yet."""
        return getattr(node, "_memory", None)

    def __getitem__(self, node: UOp) -> Buffer:
        if (found := self.get(node)) is None:
            raise KeyError(node)
        return found

    def __setitem__(self, node: UOp, buffer: Buffer) -> None:
        node._memory = buffer


buffers: Final = Buffers()


@dataclass(slots=True, eq=False)
class ScheduleItem:
    """One launch to be: `ast` says what to compute, `bufs` the memory for its slots, outputs first.

    `kernel` is the node it came from, in the graph that `kernelize` made.
    """

    ast: UOp
    bufs: tuple[Buffer, ...]
    metadata: tuple[str, ...]
    kernel: UOp


def buffer_of(node: UOp) -> Buffer:
    """The Buffer behind a BUFFER or BUFFER_VIEW node, made (but not yet allocated) at first use."""
    node = memory_of(node)
    if (found := buffers.get(node)) is None:
        if node.op is Op.BUFFER_VIEW:
            size, offset = node.arg
            found = buffer_of(node.src[0]).view(
                size, node.dtype, offset * node.src[0].dtype.itemsize
            )
        else:
            refuse_placeholder(node)
            found = new_memory(node)
        buffers[node] = found
    return found


def new_memory(node: UOp) -> Buffer:
    """Memory for a BUFFER, not yet allocated."""
    return Buffer(node.device, node.shape[0], node.dtype, image=image_of(node))


def refuse_placeholder(buffer: UOp) -> None:
    """Raise ArgumentError for a BUFFER that stands for an argument: its UNIQUE is no number."""
    mark = buffer.src[1].arg
    if isinstance(mark, tuple):
        raise ArgumentError(
            f"{mark[0]} {mark[1]} of shape {mark[2]} stands for an argument and has no value; "
            "give it one: x.call(..., fxn=body)"
        )


def kernels_below(root: UOp) -> list[UOp]:
    """The KERNELs of a graph cut by `kernelize`, each after all it depends on."""
    order = root.toposort(lambda n: n.op is not Op.BUFFER)
    return [n for n in order if n.op is Op.KERNEL]


def schedule(roots: Iterable[UOp]) -> list[ScheduleItem]:
    """The launches that roots cut by `kernelize` still need, each after all it depends on."""
    return [
        ScheduleItem(n.arg.ast, tuple(map(buffer_of, n.src[: n.arg.slots])), n.arg.metadata, n)
        for n in kernels_below(UOp.sink(*roots))
    ]
