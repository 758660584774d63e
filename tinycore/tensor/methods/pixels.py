"""Image storage of tensors: casts to and from pixels of four elements.

Floor 5. An image is where elements lie, not what they are: a tensor kept in `dtypes.imagef` is of
float32 and computes as any other. Devices without images keep it in plain memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from tinycore._deferred import deferred
from tinycore.config import settings
from tinycore.dtype import DTypeLike, ImageDType, dtypes, image, to_dtype
from tinycore.errors import ShapeError, UnsupportedError
from tinycore.tensor import graph
from tinycore.uop.movement import source_below
from tinycore.uop.node import UOp, device_node, unique
from tinycore.uop.op import Op
from tinycore.uop.shape import DeviceLike, Shape, is_group
from tinycore.uop.size import Size

if TYPE_CHECKING:
    from tinycore.tensor.core import Core

T = TypeVar("T", bound="Core")

is_image: Final[Callable[[ImageDType, str], bool]] = deferred("tinycore.schedule.limits:is_image")

LONGEST: Final = 16_384
"""Columns and rows that every device with images takes (OpenCL 3.0, table 32, in its full profile).
"""
IN_HALVES: Final = 2
"""The value of IMAGE that keeps operands in float16."""
COPY_ACCESSES: Final = 2
"""Accesses to plain memory for each element that is copied into an image: a read and a write."""


def cast(x: UOp, dtype: DTypeLike) -> UOp:
    """Every element converted; to an image if one is requested."""
    if dtype is x.dtype:
        return x
    if not isinstance(dtype, ImageDType):
        target = to_dtype(dtype)
        return x if x.dtype is target else x.cast(target)
    verify(x.shape, dtype, x.device)
    if image_of(x) is dtype:
        return x
    return UOp(Op.CONTIGUOUS, dtype.base, (cast(x, dtype.base),), dtype)


def new_image(shape: Shape, kind: ImageDType, device: DeviceLike) -> UOp:
    """An image filled with nothing in particular, under a shape."""
    verify(shape, kind, device)
    return graph.reshape(UOp(Op.BUFFER, kind.base, (device_node(device), unique()), kind), shape)


def image_of(x: UOp) -> ImageDType | None:
    """The requested image of a value; None for plain memory."""
    x = source_below(x, (Op.RESHAPE, Op.ASSIGN))
    asked = x.op in (Op.BUFFER, Op.CONTIGUOUS) and isinstance(x.arg, ImageDType)
    return x.arg if asked else None


def verify(shape: Shape, kind: ImageDType, device: DeviceLike) -> None:
    """Raise ShapeError unless the elements of a shape fill an image, on one device."""
    if not is_fixed(shape) or math.prod(shape) != kind.size:
        raise ShapeError(
            f"a tensor of shape {shape} does not fill {kind!r}, whose elements are {kind.height} x "
            f"{kind.width} x {kind.CHANNELS} = {kind.size}"
        )
    if is_group(device):
        raise UnsupportedError(
            f"an image is memory of one device, not of {device}. Cast the part on each device"
        )


def is_fixed(shape: Shape) -> bool:
    """True if no size varies from launch to launch."""
    return not any(isinstance(n, Size) for n in shape)


def product_operands(operands: Sequence[T], extents: Sequence[int | Size]) -> list[T]:
    """Operands of a product with these loop extents, in images where that can pay off.

    An element is used extents / size times, so texture units can save as many accesses to plain
    memory at most; the copy costs COPY_ACCESSES. The weight of a product with one row is read
    once, for one: a copy of it would triple what is moved, however fast images are.
    """
    terms = math.prod(n.least if isinstance(n, Size) else n for n in extents)
    return [in_image(x) if pays(x, terms) else x for x in operands]


def pays(x: Core, terms: int) -> bool:
    """True if copying an operand into an image can pay off in a product of this many terms."""
    return is_fixed(x.shape) and terms > COPY_ACCESSES * math.prod(x.shape)


def in_image(x: T) -> T:
    """A tensor of floats in an image, rows filled up to whole pixels; anything else as it is."""
    shape, kind = x.shape, x.dtype
    if kind not in (dtypes.float32, dtypes.float16) or not shape or image_of(x.uop) is not None:
        return x
    if not is_fixed(shape) or 0 in shape or is_group(x.device):
        return x
    base = dtypes.float16 if settings.IMAGE == IN_HALVES else kind
    rest = -shape[-1] % ImageDType.CHANNELS
    whole = graph.pad(x.uop, [*[(0, 0)] * (len(shape) - 1), (0, rest)])
    kind_of_image = image(base, size_for(whole.shape))
    if not is_image(kind_of_image, x.uop.single_device):
        return x
    kept = cast(whole, kind_of_image)
    return x._from_node(cast(graph.shrink(kept, [(0, n) for n in shape]), kind))


def size_for(shape: Shape) -> tuple[int, int]:
    """Rows and columns for the pixels of a shape: a row to a row, or to each two, four ..."""
    columns = shape[-1] // ImageDType.CHANNELS
    rows = math.prod(shape[:-1])
    while rows > LONGEST and rows % 2 == 0:
        rows, columns = rows // 2, columns * 2
    return rows, columns
