"""Instructions of a plugin: what one computes, as data, and what one does to memory.

Floor 1. The core does not know what an INSTRUCTION does. It is told by the node's argument. Of an
`Instruction`, which computes a value, the verifier checks the types, the text form names it, the
reference interpreter calls its meaning, and a renderer writes its template
(`Renderer.instructions`) for each lane. A plugin puts it into kernels by a rule
(`Renderer.rules`). An `Effect`, which acts on memory, is a class of the plugin's that says all this
by its methods, and that the plugin's own renderer writes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tinycore.dtype import DType, dtypes
from tinycore.errors import PluginError
from tinycore.uop.op import Op

if TYPE_CHECKING:
    from tinycore.uop.node import UOp


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


class Effect:
    """An instruction that acts on memory: the `arg` of an INSTRUCTION of void, or of what it reads.

    Subclasses are frozen dataclasses that `register_argument` gives a text form. The first source
    of their nodes is an INDEX of memory that they write or wait for, or read if they have a result;
    its gate, if any, is theirs.
    """

    places: ClassVar[int] = 1
    """Number of the first sources that are an INDEX of memory which it accesses. 0: its sources,
    of which there may be any number, only state what comes before it."""
    is_background: ClassVar[bool] = False
    """True if what it begins goes on while what follows is executed, until another waits for it."""

    @property
    def alignment(self) -> int:
        """Bytes that the shared array of its first source begins at a multiple of; 0: as any."""
        return 0

    @property
    def groups(self) -> int:
        """Neighboring groups along the first axis of a grid, whose number it divides, that act on
        each other's shared memory: they run at once, and a BARRIER is one of all of them."""
        return 1

    @property
    def extra(self) -> str:
        """Text that each launch gets (`ProgramInfo.extras`); "" for nothing."""
        return ""

    def problem(self, node: UOp) -> str | None:
        """The error in a node of it, for VERIFY=1; None if there is none."""
        raise NotImplementedError(f"{type(self).__name__}, an effect, lacks problem()")

    def step(
        self, node: UOp, access: Callable[..., Any], program: Sequence[UOp]
    ) -> Callable[[Any], None]:
        """The reference interpreter's step for a node of a program: a function of a launch's Frame.

        `access(index, elements, "reads" or "writes")` is how it finds the places of an INDEX;
        `frame.values[source]` has the value of a source, of a pointer its Memory.
        """
        raise NotImplementedError(f"{type(self).__name__}, an effect, lacks step()")


def states_order(node: UOp) -> bool:
    """True if sources of a node only state what comes before it: of a BARRIER, and some Effects."""
    return node.op is Op.BARRIER or (isinstance(node.arg, Effect) and not node.arg.places)


def reads_memory(node: UOp) -> bool:
    """True for a LOAD, and for an Effect whose result is what it reads."""
    return node.op is Op.LOAD or (isinstance(node.arg, Effect) and node.dtype is not dtypes.void)
