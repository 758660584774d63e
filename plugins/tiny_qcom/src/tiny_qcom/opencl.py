"""OpenCL C for Qualcomm's compiler: a kernel takes addresses by slot, then the variables by name.

    kernel void NAME_(global T *data0, ..., long n)

It differs from OpenCL C of tiny-cl in that no buffer has a start of its own: the queue passes
addresses. Halves are stored and computed in float32, as arithmetic on them is not reliable without
an extension that not every compiler of Qualcomm's has.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiny_cl.render import OpenClC
from tinycore.dtype import ImageDType
from tinycore.render.writer import Writer
from tinycore.uop.node import UOp

__all__ = ["QcomOpenClC"]


@dataclass(frozen=True)
class QcomOpenClC(OpenClC):
    """OpenCL C of Adrenos, which have no float64."""

    has_double: bool = False

    def head(self, writer: Writer) -> list[str]:
        """Nothing: addresses are those of what buffers hold."""
        return []

    def parameters(self, writer: Writer) -> list[str]:
        """Every slot of the kernel, also one that is not read; then numbers."""
        numbers = [f"const long {writer[u]}" for u in writer.kernel.variables]
        return self.slots(writer, "global void *unused{}") + numbers

    def parameter(self, buffer: UOp, writer: Writer) -> str:
        """Declaration of a slot: a buffer, or an image, which a kernel either reads or writes."""
        if isinstance(buffer.dtype, ImageDType):
            return super().parameter(buffer, writer)
        return f"{self.pointer_type(buffer, writer)}{self.restrict}{writer[buffer]}"
