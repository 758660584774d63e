"""Kernels of like regions, made once.

Floor 3. The layers of a network are the same regions over other memory, and often with other
constants. A region is told by what it computes, apart from both; the kernel of the first of a kind,
with holes where the constants stand, serves all others. What a constant makes possible (a product
with 1 is none) is done when it has been put in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from tinycore._locks import lock
from tinycore.dtype import DType, dtypes
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

MOST_TEMPLATES: Final = 512
"""How many are kept; the one unused longest goes."""
TELLING: Final = frozenset({0.0, 1.0, -1.0})
"""Constants that are part of what is computed: there is hardly a rule that is about others."""

Slot = Callable[[UOp], UOp | None]
"""The slot that a node is loaded from; None for one that is computed."""


class Region(NamedTuple):
    """What a kernel computes, apart from memory and from the values of constants."""

    key: tuple[Hashable, ...]
    constants: tuple[UOp, ...]
    """Those whose values are not in the key, as they stand in the tensor graph."""


class Template(NamedTuple):
    """A kernel with holes."""

    ast: UOp
    holes: tuple[UOp, ...]
    filled: dict[tuple[UOp, ...], UOp]
    """The last kernel that was made of it, by its constants."""


templates: Final[dict[tuple[Hashable, ...], Template]] = {}
table: Final = lock()
"""Held to look a template up, never while one is made."""


def region_of(
    outputs: Iterable[UOp], nodes: Iterable[UOp], slot: Slot, about: Hashable
) -> Region | None:
    """The region that `nodes` are, sources first; `about` is what else its kernel depends on.

    None where a source is not among them, so that they do not tell all.
    """
    numbers: dict[UOp, int] = {}
    found: list[Hashable] = [about]
    constants: dict[UOp, int] = {}
    for node in nodes:
        if node in numbers:
            continue
        numbers[node] = len(numbers)
        if (pointer := slot(node)) is not None:
            found.append((pointer, node.shape))
        elif is_hole(node):
            found.append((node.dtype, constants.setdefault(node, len(constants))))
        else:
            argument = node.arg.hex() if type(node.arg) is float else node.arg
            below = tuple([numbers.get(s, -1) for s in node.src if s.op is not Op.DEVICE])
            if -1 in below:
                return None
            found.append((node.op, node.dtype, argument, below))
    found.append(tuple([numbers[node] for node in outputs]))
    return Region(tuple(found), tuple(constants))


def is_hole(node: UOp) -> bool:
    """Whether a constant may be any other."""
    if node.op is not Op.CONST or not dtypes.is_float(node.dtype):
        return False
    return math.isfinite(node.arg) and node.arg not in TELLING


def kernel_of(region: Region, make: Callable[[Mapping[UOp, UOp]], UOp]) -> UOp:
    """The kernel of a region; `make` makes one, given what stands for each constant in it."""
    template = looked_up(region.key)
    if template is None:
        holes = tuple(map(hole, range(len(region.constants)), dtypes_of(region.constants)))
        ast = make(dict(zip(region.constants, holes, strict=True)))
        template = Template(ast, holes, {})
        with table:
            templates[region.key] = template
            if len(templates) > MOST_TEMPLATES:
                del templates[next(iter(templates))]
    if not template.holes:
        return template.ast
    values = tuple([UOp.const(c.dtype, c.arg) for c in region.constants])
    if (found := template.filled.get(values)) is None:
        filled = template.ast.substitute(dict(zip(template.holes, values, strict=True)))
        found = rewrite(filled, simplify, name="simplify kernel")
        template.filled.clear()
        template.filled[values] = found
    return found


def looked_up(key: tuple[Hashable, ...]) -> Template | None:
    """The template of a key, if it is kept; from now on it is the one used last."""
    with table:
        if (found := templates.pop(key, None)) is not None:
            templates[key] = found
        return found


def dtypes_of(nodes: Iterable[UOp]) -> Iterator[DType]:
    """The dtype of each node."""
    return (node.dtype for node in nodes)


def hole(number: int, dtype: DType) -> UOp:
    """What stands for a constant: a value of which nothing is known."""
    return UOp(Op.DEFINE_VAR, dtype, (), (f"constant {number}", dtype.min, dtype.max))
