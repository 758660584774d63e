"""Turn a graph over several devices into one graph per device, and copies between them.

Floor 3. What the frontend builds is the whole: nodes of full shape on a group of devices, over
MULTIs that hold the parts. Here each such node becomes a MULTI of its parts, sources first, so that
`kernelize` meets single devices only. Every op keeps its operands where they lie if it can; where
it cannot, they are laid out anew (`multi_rules.py`, `collectives.py`).
See docs/decisions/0021-sharded-tensors.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from tinycore.errors import UnsupportedError
from tinycore.schedule.collectives import gathered
from tinycore.schedule.fuse import is_leaf, is_stored
from tinycore.schedule.kernel import base_of
from tinycore.schedule.multi_rules import RULES, is_memory
from tinycore.uop.node import UOp
from tinycore.uop.op import MOVEMENT, Op
from tinycore.uop.shape import is_group


class PerDevice:
    """The graph below some roots with everything on a group of devices done part by part.

    `done` maps each node to what stands for it: a MULTI for a node on a group, else a node.
    """

    def __init__(self, roots: Iterable[UOp]) -> None:
        self.roots = list(roots)
        self.done: dict[UOp, UOp] = {}
        order = UOp.sink(*self.roots).toposort(lambda n: not is_leaf(n))[:-1]
        self.several = any(n.op is Op.MULTI or is_on_group(n) for n in order)
        if self.several:
            for node in order:
                self.done[node] = self.lowered(node)

    def lowered(self, node: UOp) -> UOp:
        """What stands for a node, its sources being done."""
        sources = [self.done.get(s, s) for s in node.src]
        if node.op is Op.CUSTOM and is_on_group(node):
            raise UnsupportedError(
                f"a kernel of one's own runs on one device, and its tensors are on {node.device}: "
                "move them with .to(device)"
            )
        if is_on_group(node) and node.shape_or_none is not None:
            if node.op is Op.RESHAPE:  # several in a row are one: what lies between may not fit
                base = base_of(node)
                sources = [self.done[base]]
                if base.shape == node.shape:
                    return sources[0]
            return RULES[node.op](node, sources)
        if node.op is Op.COPY and sources[0].op is Op.MULTI:
            return gathered(sources[0], node.device)
        return node if is_leaf(node) else node.with_src(tuple(sources))

    @property
    def parts(self) -> list[UOp]:
        """What has to be computed on single devices for the roots."""
        if not self.several:
            return self.roots
        found = (self.done[viewed(root)] for root in self.roots)
        return [part for n in found for part in (n.src if n.op is Op.MULTI else (n,))]

    def together(self, memory: dict[UOp, UOp]) -> dict[UOp, UOp]:
        """What is memory now, given that of the parts: the roots, and all whose parts are.

        What only rearranges memory goes on doing so, to show what is assigned to it later.
        """
        if not self.several:
            return memory
        found = dict(memory)
        computed = {viewed(root) for root in self.roots}
        for node, new in self.done.items():
            parts = new.src if new.op is Op.MULTI else (new,)
            known = all(p in memory or is_stored(base_of(p)) for p in parts)
            if node in computed or (known and node.op not in MOVEMENT):
                found[node] = new.substitute(memory)
        for root in self.roots:
            if (below := viewed(root)) is not root:
                found[root] = root.substitute({below: found[below]})
        return {old: new for old, new in found.items() if old is not new}


def viewed(node: UOp) -> UOp:
    """What a node rearranges, where that is memory, or what was assigned to it; else the node."""
    base = node
    while base.op in MOVEMENT:
        base = base.src[0]
    parts = base.src if base.op is Op.MULTI else (base,)
    return base if all(is_memory(p) for p in parts) else node


def is_on_group(node: UOp) -> bool:
    """Whether a node is on more than one device."""
    device = node.device_or_none
    return device is not None and is_group(device)


def axis_of(node: UOp) -> int | None:
    """The axis along which a node on a group lies in parts; None where each device has all."""
    axis: int | None = PerDevice([node]).done[node].arg
    return axis
