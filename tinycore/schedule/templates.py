"""Kernel templates: one kernel for all regions that differ in memory and constants only.

Floor 3. The layers of a network are equal regions over other memory, often with other constants.
The key of a region is its structure; the kernel of the first region with a key, with holes in place
of its constants, serves all others. Simplifications that a constant allows (a product with 1) run
after it is filled in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, NamedTuple

from tinycore._lru import Lru
from tinycore.dtype import DType, dtypes
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify

SIGNIFICANT: Final = frozenset({0.0, 1.0, -1.0})
"""Constants that rewrite rules test for; they stay in the key."""

Slot = Callable[[UOp], UOp | None]
"""The slot that a node is loaded from; None if it is computed."""


class Region(NamedTuple):
    """The structure of a kernel's computation, without memory and values of constants."""

    key: tuple[Hashable, ...]
    constants: tuple[UOp, ...]
    """Constants whose values are not in the key, as nodes of the tensor graph."""


class Template(NamedTuple):
    """A kernel with holes for constants."""

    ast: UOp
    holes: tuple[UOp, ...]
    filled: dict[tuple[UOp, ...], UOp]
    """The kernel filled in last, by its constants."""


templates: Final[Lru[tuple[Hashable, ...], Template]] = Lru(512)
"""Kernels by the structure of their regions."""


def region_of(
    outputs: Iterable[UOp], nodes: Iterable[UOp], slot: Slot, about: Hashable
) -> Region | None:
    """The region of `nodes`, sources first; `about` is what else its kernel depends on.

    None if a source is not among them: then they do not determine the kernel.
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
    """True if a constant becomes a hole."""
    if node.op is not Op.CONST or not dtypes.is_float(node.dtype):
        return False
    return math.isfinite(node.arg) and node.arg not in SIGNIFICANT


def kernel_of(region: Region, make: Callable[[Mapping[UOp, UOp]], UOp]) -> UOp:
    """The kernel of a region; `make` builds one, given the hole of each constant."""
    template = templates.find(region.key)
    if template is None:
        holes = tuple([hole(i, node.dtype) for i, node in enumerate(region.constants)])
        ast = make(dict(zip(region.constants, holes, strict=True)))
        template = Template(ast, holes, {})
        templates.keep(region.key, template)
    if not template.holes:
        return template.ast
    values = tuple([UOp.const(c.dtype, c.arg) for c in region.constants])
    if (found := template.filled.get(values)) is None:
        filled = template.ast.substitute(dict(zip(template.holes, values, strict=True)))
        found = rewrite(filled, simplify, name="simplify kernel")
        template.filled.clear()
        template.filled[values] = found
    return found


def hole(number: int, dtype: DType) -> UOp:
    """A hole: a variable of unknown value in place of a constant."""
    return UOp(Op.DEFINE_VAR, dtype, (), (f"constant {number}", dtype.min, dtype.max))
