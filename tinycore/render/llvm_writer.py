"""The text of an LLVM function under construction, and its plain conversions.

Floor 2. See `llvm.py` for the family that uses it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinycore.dtype import DType
from tinycore.render.base import LinearKernel
from tinycore.render.llvm_types import mask_name, splat, suffix, type_name
from tinycore.uop.node import UOp


class Writer:
    """The text of one function while it grows."""

    def __init__(self, kernel: LinearKernel) -> None:
        self.kernel = kernel
        self.values: dict[UOp, str] = {}
        self.entry: list[str] = []
        """Allocas, which belong at the head of the function."""
        self.lines: list[str] = []
        self.declarations: dict[str, None] = {}
        self.count = 0

    def __getitem__(self, u: UOp) -> str:
        return self.values[u]

    def line(self, text: str) -> None:
        """Add an instruction."""
        self.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        """Start a block."""
        self.lines.append(f"{name}:")

    def fresh(self, prefix: str = "v") -> str:
        """A name nothing else has, without its `%`."""
        self.count += 1
        return f"{prefix}{self.count}"

    def add(self, text: str, prefix: str = "v") -> str:
        """Add an instruction that yields a value; return the value's name."""
        name = f"%{self.fresh(prefix)}"
        self.line(f"{name} = {text}")
        return name

    def call(self, name: str, dtype: DType, operands: Sequence[str]) -> str:
        """Call an overloaded intrinsic whose operands are all of one type."""
        kind = type_name(dtype)
        full = f"@llvm.{name}.{suffix(dtype)}"
        self.declarations.setdefault(f"declare {kind} {full}({', '.join([kind] * len(operands))})")
        return self.add(f"call {kind} {full}({', '.join(f'{kind} {x}' for x in operands)})")


def convert(source: DType, target: DType, text: str, writer: Writer) -> str:
    """A conversion that cannot fail: between integers, between floats, or from integer to float."""
    if type_name(source) == type_name(target):
        return text
    if source.kind == "float":
        op = "fpext" if target.itemsize > source.itemsize else "fptrunc"
    elif target.kind == "float":
        op = "uitofp" if source.kind in ("uint", "bool") else "sitofp"
    elif source.kind == "bool":
        op = "zext"
    elif target.itemsize < source.itemsize:
        op = "trunc"
    else:
        op = "zext" if source.kind == "uint" else "sext"
    return writer.add(f"{op} {type_name(source)} {text} to {type_name(target)}")


def reinterpreted(source: DType, kind: str, text: str, writer: Writer) -> str:
    """The same bits as another type of LLVM."""
    if type_name(source) == kind:
        return text
    return writer.add(f"bitcast {type_name(source)} {text} to {kind}")


def in_range(carrier: DType, source: DType, text: str, writer: Writer) -> str:
    """Condition, as code, that a float32 or float64 truncated fits the carrier; false for NaN."""
    kind, limit = type_name(source), 2.0 ** (carrier.bits - 1)
    exact = source.itemsize == 8 and carrier.bits == 32
    above = ("fcmp ogt", -limit - 1) if exact else ("fcmp oge", -limit)
    low = writer.add(f"{above[0]} {kind} {text}, {splat(source, above[1])}")
    high = writer.add(f"fcmp olt {kind} {text}, {splat(source, limit)}")
    return writer.add(f"and {mask_name(source)} {low}, {high}")
