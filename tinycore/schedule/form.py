"""The form of a graph: what it says apart from which memory it is about.

Floor 3. Two steps of a training loop are the same graph over other buffers. Their form, in which
buffers and other numbers that only tell things apart are counted off in the order in which a walk
meets them, is one and the same node; so what was found out about it once can be looked up.
See docs/decisions/0025-schedule-cache.md, and for values held in memory
docs/decisions/0042-held-values.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tinycore.dtype import dtypes
from tinycore.schedule.kernel import Kernel
from tinycore.uop.bindings import SIZED, Naming, exchanged, sizes_in
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

INTS: Final = frozenset({int})
NONE_HELD: Final[Mapping[UOp, UOp]] = {}


@dataclass(frozen=True)
class Form:
    """The form of some roots, and what it was found in.

    `sink` is over the forms of the roots. `memory` is what stands in the place of its parameters:
    BUFFERs and views of them, by number.
    """

    roots: list[UOp]
    sink: UOp
    memory: tuple[UOp, ...]
    forms: dict[UOp, UOp]
    """The form of every node below the roots. No two nodes have the same, but for what is held: it
    has that of its memory."""
    naming: Naming
    """The names of bound variables in forms, where Sizes are free, and the numbers they hold."""
    assigned: list[UOp]
    """The ASSIGNs below the roots, sources first."""
    held: Mapping[UOp, UOp]
    """Nodes whose value some memory holds, and that memory, which is read in their place."""

    @property
    def values(self) -> dict[str, int]:
        """The numbers that variables hold, by the names that launches know."""
        return self.naming.numbers

    @property
    def bound(self) -> set[tuple[str, int]]:
        """The bound variables of the graph, each with the number it holds."""
        named = self.naming
        return {(node.arg[0], named.numbers[new.arg[0]]) for node, new in named.nodes.items()}

    @cached_property
    def nodes(self) -> dict[UOp, UOp]:
        """The node that a form is the form of; of memory that holds a value, that value."""
        return {form: node for node, form in self.forms.items()}


def form_of(roots: list[UOp], held: Mapping[UOp, UOp] = NONE_HELD) -> Form:
    """The form of a graph, in one walk that goes to each node once, and below none that is `held`.

    Raises ArgumentError for a variable that holds no number.
    """
    sink = UOp.sink(*roots)
    forms: dict[UOp, UOp] = {}
    memory: list[UOp] = []
    assigned: list[UOp] = []
    copies = calls = 0
    naming = Naming()
    stack = [sink]
    push = stack.append
    while stack:
        node = stack[-1]
        if node in forms:
            stack.pop()
            continue
        op, src = node.op, node.src
        if node in held:
            place = held[node]
            if place in forms:
                forms[node] = forms[place]
                stack.pop()
            else:
                push(place)
            continue
        if op is Op.CALL:  # what it was made of is for gradients
            src = src[:1]
        if op is Op.BUFFER:
            forms[node] = parameter(node, len(memory))
            memory.append(node)
            stack.pop()
            continue
        height = len(stack)
        for source in src[::-1]:
            if source not in forms:
                push(source)
        if len(stack) != height:
            continue
        stack.pop()
        argument = node.arg
        if op is Op.BUFFER_VIEW:
            memory.append(node)
        elif op is Op.CONTIGUOUS and type(argument) is int:  # a copy that no equal node shares
            argument, copies = copies, copies + 1
        elif op is Op.CALL:
            argument, calls = calls, calls + 1
        elif op is Op.ASSIGN:
            assigned.append(node)
        elif type(argument) is Kernel:
            argument = argument.without_gradient
        elif op in SIZED and not plain(argument) and any(sizes_in(argument)):
            argument = exchanged(argument, naming.free)
        found = tuple([forms[s] for s in src])
        same = found == src and argument is node.arg
        forms[node] = node if same else UOp(op, node.dtype, found, argument)
    return Form(roots, forms[sink], tuple(memory), forms, naming, assigned, held)


def plain(argument: object) -> bool:
    """Whether an argument consists of plain ints at first sight, as most do."""
    return type(argument) is tuple and INTS.issuperset(map(type, argument))


def parameter(buffer: UOp, number: int) -> UOp:
    """A BUFFER that stands for any other of its kind; `unique` makes none like it."""
    mark = UOp(Op.UNIQUE, dtypes.void, (), -1 - number)
    return UOp(Op.BUFFER, buffer.dtype, (buffer.src[0], mark), buffer.arg)
