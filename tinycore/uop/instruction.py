"""Instructions of a plugin: what one computes, as data.

Floor 1. The core does not know what an INSTRUCTION does. It is told by the node's argument: the
verifier checks its types, the text form names it, the reference interpreter calls its meaning, and
a renderer writes its template (`Renderer.instructions`) for each lane. A plugin puts it into
kernels by a rule (`Renderer.rules`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tinycore.dtype import DType
from tinycore.errors import PluginError


@dataclass(frozen=True)
class Instruction:
    """An instruction that computes each result from one value of each operand."""

    name: str
    operands: tuple[DType, ...]
    """Types of the sources, scalars."""
    result: DType
    meaning: str
    """Reference to its function of NumPy arrays, as "package.module:function". The module has
    this Instruction as a variable."""

    @property
    def function(self) -> Callable[..., Any]:
        """Its function. Raises PluginError unless its module is imported and holds an equal
        Instruction: a text that names functions imports nothing, and calls none but meanings."""
        module, _, name = self.meaning.partition(":")
        values: dict[str, Any] = getattr(sys.modules.get(module), "__dict__", {})
        found: Callable[..., Any] | None = values.get(name)
        if found is None or self not in [v for v in values.values() if isinstance(v, Instruction)]:
            raise PluginError(
                f"instruction {self.name}: {self.meaning!r} is no function of an imported module "
                "that holds this Instruction, as a variable"
            )
        return found
