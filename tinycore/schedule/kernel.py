"""`Kernel`, the argument of a KERNEL node: what one launch computes.

Floor 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.text import register_argument


@dataclass(frozen=True)
class Kernel:
    """One launch: its graph, and where it came from.

    `ast` is a SINK over ENDs of STOREs (see `uop.verify`, stage "kernel"), or a COPY. `metadata`
    names the operations of the tensor graph that were fused into it, the last one first.
    """

    ast: UOp
    metadata: tuple[str, ...] = ()

    def __repr__(self) -> str:
        names = f" ({', '.join(self.metadata)})" if self.metadata else ""
        return f"<Kernel {self.name}{names}>"

    @property
    def name(self) -> str:
        """A readable name from the kernel's loops, e.g. reduce_1024_256."""
        return kernel_name(self.ast)


register_argument(Kernel, lambda kernel: (kernel.ast, kernel.metadata), Kernel)


def kernel_name(ast: UOp) -> str:
    """What a kernel does and the extents of its loops, outputs first."""
    if ast.op is Op.COPY:
        return "copy"
    nodes = ast.toposort()
    outputs: dict[UOp, None] = {}
    for end in ast.src:
        outputs.update(dict.fromkeys(end.src[1:] if end.op is Op.END else ()))
    reduced = dict.fromkeys(r for n in nodes if n.op is Op.REDUCE for r in n.src[1:])
    kind = "reduce" if reduced else "elementwise"
    sizes = [extent(r) for r in (*outputs, *reduced)]
    return "_".join([kind, *(sizes or ["1"])])


def slot_count(ast: UOp) -> int:
    """How many buffers a kernel takes."""
    return sum(n.op is Op.DEFINE_GLOBAL for n in ast.toposort())


def extent(counter: UOp) -> str:
    """The trip count of a RANGE as text."""
    end = counter.src[0]
    return str(end.arg) if end.op is Op.CONST else "n"


def numel(node: UOp) -> int:
    """How many elements a tensor-graph node has."""
    return math.prod(node.shape)
