"""The names of nodes and ops in tinygrad, importable from one module.

Floor 1. `Ops` is `Op`, `AxisType` is `AxisKind`; code here uses the latter.
"""

from __future__ import annotations

from tinycore.uop.node import UOp
from tinycore.uop.op import AxisKind as AxisType
from tinycore.uop.op import Op as Ops
from tinycore.uop.size import Variable

__all__ = ["AxisType", "Ops", "UOp", "Variable"]
