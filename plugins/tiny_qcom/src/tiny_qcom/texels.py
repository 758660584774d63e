"""Loads of plain buffers that go through texture units, four float32 or float16 at once.

Texture units have a cache beside shared memory, and an Adreno 640 gets twice as many bytes of it as
of buffers (`chip.py` says who measured that). What shared memory is filled with comes so, too:
loads of buffers keep the unit busy that reads shared memory. Only loads in loops are meant: of a
few the descriptors would cost more.
"""

from __future__ import annotations

from typing import Final

from tinycore.dtype import PointerDType, dtypes
from tinycore.render.base import LinearKernel, pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["TEXEL", "TEXTURED", "texel_loads"]

TEXEL: Final = 4
"""Numbers of a pixel."""
TEXTURED: Final = (dtypes.float32, dtypes.float16)
"""Types that texture units give as float32."""
MOST_TEXELS: Final = 1 << 27
"""Pixels of a buffer that a descriptor names."""


def texel_loads(kernel: LinearKernel) -> frozenset[UOp]:
    """The loads of a kernel that are read as pixels."""
    found: set[UOp] = set()
    others = other_uses(kernel)
    depth = 0
    for u in kernel.uops:
        depth += (u.op is Op.RANGE) - (u.op is Op.END) * (len(u.src) - 1)
        if depth and u.op is Op.LOAD and u not in others and is_read(u, kernel):
            found.add(u)
    return frozenset(found)


def other_uses(kernel: LinearKernel) -> set[UOp]:
    """Halves that are not computed with as floats alone: something else takes their bits."""
    found: set[UOp] = set()
    for u in reversed(kernel.uops):
        if u.op is Op.EXTRACT or (u.op is Op.BITCAST and u.dtype is dtypes.float16):
            found.update(u.src if u in found else ())
        elif not is_widening(u):
            found.update(s for s in u.src if s.dtype.scalar() in (dtypes.uint16, dtypes.float16))
    return found


def is_widening(u: UOp) -> bool:
    """True if a node makes a float of a half."""
    is_half = bool(u.src) and u.src[0].dtype is dtypes.float16
    return u.op is Op.CAST and u.dtype is dtypes.float32 and is_half


def is_read(load: UOp, kernel: LinearKernel) -> bool:
    """True if a load is of whole pixels of a buffer that the kernel only reads."""
    index = load.src[0]
    pointer = pointer_of(index)
    if pointer.op is not Op.DEFINE_GLOBAL or pointer.arg in kernel.written:
        return False
    kind = pointer.dtype
    if index.op is not Op.INDEX or len(index.src) > 2 or not isinstance(kind, PointerDType):
        return False
    is_float = kind.base is dtypes.float32 or kind.base is dtypes.uint16
    return is_float and load.dtype.count % TEXEL == 0 and kind.size <= TEXEL * MOST_TEXELS
