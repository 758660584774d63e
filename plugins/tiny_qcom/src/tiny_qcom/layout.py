"""Layout of the operands of products for texture units, which load pixels of four columns.

If neither operand is contiguous along its side of the result, the smaller one is copied: weights
along their filters, keys along the positions of a sequence.

See docs/decisions/0064-operand-layout.md of tinycore.
"""

from __future__ import annotations

import math
from typing import Final

from tiny_qcom.texels import TEXEL, TEXTURED
from tinycore.render.base import Limits
from tinycore.tiling import Operand, ProductLoops, moves_with, own_loop
from tinycore.uop.node import UOp

__all__ = ["copies"]

LEAST_READS: Final = 64
"""Fewest reads of each element for which a copy pays: at the rates of an Adreno 640 a copy of a
float takes as long as 33 multiply-adds save whose operands come from textures, too."""
LEAST_COLUMNS: Final = 2 * TEXEL
"""Fewest columns of a product along which a copy is made: images of a small batch are contiguous
along the batch, and have fewer."""


def copies(
    operands: list[Operand], loops: ProductLoops, work: int, limits: Limits
) -> dict[UOp, UOp]:
    """A copy along a side of the smallest operand that permits it; {} if one lies so already."""
    sides = loops.sides
    for operand in operands:
        loop = operand.vector_loop(TEXEL)
        others = [o for o in operands if o is not operand]
        is_read_so = loop in sides and operand.base.dtype in TEXTURED
        if is_read_so and loop is not None and not any(moves_with(o, loop) for o in others):
            return {}
    found = [(o, own_loop(o, operands, sides, TEXEL)) for o in operands]
    own = {
        o: loop
        for o, loop in found
        if loop is not None and loop.src[0].arg >= LEAST_COLUMNS and o.base.dtype in TEXTURED
    }
    if not own:
        return {}
    # Of two of equal size the one along which results are contiguous, to be stored by vectors.
    chosen = min(own, key=lambda o: (math.prod(o.base.shape), -sides.index(own[o])))
    if work < LEAST_READS * math.prod(chosen.base.shape):
        return {}
    return {chosen.top: chosen.copied_along(own[chosen])}
