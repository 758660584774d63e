"""Instructions of a plugin: what one computes, as data.

Floor 1. The core does not know what an INSTRUCTION does. It is told by the node's argument: the
verifier checks its types, the text form names it, the reference interpreter calls its meaning, and
a renderer writes its template (`Renderer.instructions`). A plugin puts it into kernels by a rule
(`Renderer.rules`).
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
    """Reference to its function of NumPy arrays, as "package.module:function"."""

    @property
    def function(self) -> Callable[..., Any]:
        """Its function. Raises PluginError if the plugin with its meaning is not imported, as
        a text that names it imports nothing."""
        module, _, name = self.meaning.partition(":")
        found: Callable[..., Any] | None = getattr(sys.modules.get(module), name, None)
        if found is None:
            raise PluginError(
                f"instruction {self.name}: {self.meaning!r} is no function of an imported module"
            )
        return found

    def types(self, lanes: int) -> list[DType]:
        """Types of the operands and of the result for vectors of some lanes."""
        return [kind.vec(lanes) for kind in (*self.operands, self.result)]
