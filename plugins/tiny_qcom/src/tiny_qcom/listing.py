"""The listing of a kernel while `nir.py` writes it: its lines, and the names of its values."""

from __future__ import annotations

from collections import Counter

from tiny_qcom.texels import texel_loads
from tinycore.render.base import LinearKernel
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["Lanes", "Listing"]

Lanes = tuple[str, ...]
"""The names of a value, one for each lane."""


def fused_products(kernel: LinearKernel) -> frozenset[UOp]:
    """The products that one sum of floats alone uses, which one instruction computes with it."""
    uses = Counter(source for u in kernel.uops for source in u.src)
    found: set[UOp] = set()
    for u in kernel.uops:
        if u.op is Op.ADD and u.dtype.kind == "float":
            once = [s for s in u.src if s.op is Op.MUL and uses[s] == 1]
            found.update(once[:1])
    return frozenset(found)


class Listing:
    """The lines of one kernel while they grow, and the names of its values."""

    def __init__(self, kernel: LinearKernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.values: dict[UOp, Lanes] = {}
        self.count = 0
        self.loops: list[tuple[str, str]] = []
        """Variable and type of the counter of each open loop."""
        self.constants: dict[tuple[int, int], str] = {}
        self.images: dict[UOp, int] = {}
        """Their numbers: those that are written first, as stores count only these."""
        self.products = fused_products(kernel)
        self.texels = texel_loads(kernel)
        self.widened: set[str] = set()
        """Halves that a texture unit has made floats of."""

    def put(self, text: str) -> None:
        """Add a line."""
        self.lines.append(text)

    def new(self, *words: object) -> str:
        """The name of what an instruction gives."""
        name = f"%{self.count}"
        self.count += 1
        self.put(f"{name} = {' '.join(map(str, words))}")
        return name

    def constant(self, bits: int, number: int) -> str:
        """The name of a literal, which stands in front of everything."""
        key = bits, number & ((1 << bits) - 1)
        if key not in self.constants:
            self.constants[key] = f"%c{len(self.constants)}"
        return self.constants[key]
