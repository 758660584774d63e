"""`TensorMap`: a buffer as a tensor of which a device copies boxes to shared memory by itself.

It is what a `TensorCopy` is of, and what a driver is told of the buffer at each launch
(cuTensorMapEncodeTiled). Dimension 0 lies densest. What a box has outside of the tensor is 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tinycore.dtype import DType, dtypes

UNIT_BYTES: Final = 16
SHARED_LINE_BYTES: Final = 128
"""Bytes that stay together in a swizzled box, and that shared memory serves at once."""
BOX_SWIZZLES: Final = (0, 32, 64, 128)
MOST_RANK: Final = 5
MOST_BOX: Final = 256
MOST_STRIDE: Final = 1 << 40
MOST_SIZE: Final = 1 << 32


@dataclass(frozen=True)
class TensorMap:
    """A tensor in the buffer of one slot, and the box of it that one copy moves."""

    slot: int
    dtype: DType
    sizes: tuple[int, ...]
    """Elements along each dimension."""
    strides: tuple[int, ...]
    """Bytes from one index to the next of each dimension but the first, whose elements touch."""
    box: tuple[int, ...]
    """Elements of the box along each dimension."""
    swizzle: int = 0
    """Bytes of a row of the box whose pieces of 16 bytes are exchanged; 0: none are."""
    rounds: bool = False
    """True if float32 elements are rounded on the way to the 10 bits of a fraction that matrix
    units multiply (TF32), ties to even."""

    @property
    def box_bytes(self) -> int:
        """Bytes that one copy writes, those outside of the tensor included."""
        return math.prod(self.box) * self.dtype.itemsize

    @property
    def alignment(self) -> int:
        """Bytes that the place of a box in shared memory is a multiple of.

        A swizzle depends on the address itself, and repeats after 8 lines or fewer.
        """
        return max(8 * self.swizzle, SHARED_LINE_BYTES)

    def problem(self) -> str | None:
        """Why no device takes it, as text; None if it is valid."""
        rank, size = len(self.sizes), self.dtype.itemsize
        if not 1 <= rank <= MOST_RANK or len(self.box) != rank or len(self.strides) != rank - 1:
            return f"{rank} sizes, {len(self.strides)} strides and a box of {len(self.box)}"
        if any(not 0 < x <= MOST_SIZE for x in self.sizes):
            return f"sizes are 1 to {MOST_SIZE}, not {self.sizes}"
        if any(x % UNIT_BYTES or not 0 < x < MOST_STRIDE for x in self.strides):
            return f"strides are multiples of {UNIT_BYTES} bytes, not {self.strides}"
        spans = zip((size, *self.strides), self.sizes, self.strides, strict=False)
        if any(stride * count > following for stride, count, following in spans):
            return f"rows of {self.sizes} elements overlap where strides are {self.strides}"
        if any(not 0 < x <= MOST_BOX for x in self.box):
            return f"boxes have 1 to {MOST_BOX} elements along a dimension, not {self.box}"
        row = self.box[0] * size
        if row % UNIT_BYTES:
            return f"rows of a box are multiples of {UNIT_BYTES} bytes, not {row}"
        if self.swizzle not in BOX_SWIZZLES or (self.swizzle and row > self.swizzle):
            return f"a swizzle of {self.swizzle} bytes exchanges no pieces of rows of {row}"
        return None

    def place(self, position: Sequence[int]) -> int:
        """Byte of a box in shared memory where the element at a position in it lies."""
        steps = [math.prod(self.box[:axis]) for axis in range(len(self.box))]
        place = sum(map(int.__mul__, position, steps)) * self.dtype.itemsize
        turn = place // SHARED_LINE_BYTES % max(self.swizzle // UNIT_BYTES, 1)
        return place ^ turn * UNIT_BYTES

    def to_json(self) -> str:
        """Its text among what a launch wants (`ProgramInfo.extras`)."""
        return json.dumps(asdict(self) | {"dtype": self.dtype.name})

    @classmethod
    def from_json(cls, text: str) -> TensorMap:
        """The map of such a text."""
        found: dict[str, Any] = json.loads(text)
        lists = {name: tuple(found[name]) for name in ("sizes", "strides", "box")}
        return cls(**{**found, **lists, "dtype": dtypes.by_name[found["dtype"]]})
