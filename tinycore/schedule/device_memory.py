"""Device memory of BUFFER nodes: a Buffer per node, created at first use.

Floor 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from tinycore.device.buffer import Buffer
from tinycore.errors import ArgumentError
from tinycore.schedule.kernel import image_of, memory_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


class Buffers:
    """The device memory of each BUFFER node, as a mapping. `buffers` is the one instance.

    The Buffer is an attribute of its node: every launch looks it up, and it dies with the node.
    """

    def get(self, node: UOp) -> Buffer | None:
        """The memory of a node; None if it has none yet."""
        found: Buffer | None = node._memory  # type: ignore[assignment]
        return found

    def __getitem__(self, node: UOp) -> Buffer:
        if (found := self.get(node)) is None:
            raise KeyError(node)
        return found

    def __setitem__(self, node: UOp, buffer: Buffer) -> None:
        node._memory = buffer


buffers: Final = Buffers()
_MEMORY: Final = attrgetter("_memory")


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


def buffers_of(nodes: Sequence[UOp]) -> tuple[Buffer, ...]:
    """The Buffers behind BUFFER nodes."""
    found = tuple(map(_MEMORY, nodes))
    return tuple(map(buffer_of, nodes)) if None in found else found


def new_memory(node: UOp) -> Buffer:
    """Memory for a BUFFER, not yet allocated."""
    return Buffer(node.single_device, node.shape[0], node.dtype, image=image_of(node))


def refuse_placeholder(buffer: UOp) -> None:
    """Raise ArgumentError for a BUFFER that stands for an argument: its UNIQUE is no number."""
    mark = buffer.src[1].arg
    if isinstance(mark, tuple):
        raise ArgumentError(
            f"{mark[0]} {mark[1]} of shape {mark[2]} stands for an argument and has no value; "
            "give it one: x.call(..., fxn=body)"
        )
