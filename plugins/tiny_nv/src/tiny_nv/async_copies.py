"""Asynchronous copies to shared memory (cp.async), as instructions of tinycore.

What they do in the reference interpreter is in `copy_steps.py`, where kernels use them in
`copied_fills.py`.

NVIDIA, "PTX ISA" 9.0, section 9.7.9.25.3, "cp.async".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from tiny_nv.phases import Access, Program, Step
from tinycore.dtype import PointerDType
from tinycore.plugin import deferred
from tinycore.render.base import pointer_of
from tinycore.uop.instruction import Effect
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.text import register_argument

__all__ = ["SIZES", "AsyncCopy", "CommitGroup", "WaitGroup"]

SIZES: Final = (4, 8, 16)
"""Bytes that cp.async copies."""

copy_step: Final = deferred("tiny_nv.copy_steps:copy_step")
commit_step: Final = deferred("tiny_nv.copy_steps:commit_step")
wait_step: Final = deferred("tiny_nv.copy_steps:wait_step")


@dataclass(frozen=True)
class AsyncCopy(Effect):
    """A thread begins to copy elements to the first INDEX from the second; where the gate of the
    second is false, zeros."""

    elements: int

    places: ClassVar[int] = 2
    is_background: ClassVar[bool] = True

    def problem(self, node: UOp) -> str | None:
        """The error in a node of it; None if there is none."""
        if [s.op for s in node.src] != [Op.INDEX, Op.INDEX]:
            return (
                f"AsyncCopy is between two INDEX, not {' and '.join(s.op.name for s in node.src)}"
            )
        to, origin = (pointer_of(s).dtype for s in node.src)
        assert isinstance(to, PointerDType)
        assert isinstance(origin, PointerDType)
        if (to.space, origin.space) != ("local", "global"):
            return f"AsyncCopy is from global to local memory, not {origin.space} to {to.space}"
        if to.base is not origin.base:
            return f"elements of {origin.base!r} do not become {to.base!r}"
        size = self.elements * to.base.itemsize
        return None if size in SIZES else f"AsyncCopy moves 4, 8 or 16 bytes, not {size}"

    def step(self, node: UOp, access: Access, program: Program) -> Step:
        """The reference interpreter's step."""
        step: Step = copy_step(node, access)
        return step


@dataclass(frozen=True)
class CommitGroup(Effect):
    """The copies of each thread since its last CommitGroup are a group."""

    places: ClassVar[int] = 0
    is_background: ClassVar[bool] = True

    def problem(self, node: UOp) -> str | None:
        """None: any copies are a group."""
        return None

    def step(self, node: UOp, access: Access, program: Program) -> Step:
        """The reference interpreter's step."""
        step: Step = commit_step()
        return step


@dataclass(frozen=True)
class WaitGroup(Effect):
    """The groups of copies of a thread, all but the latest `left`, are done."""

    left: int

    places: ClassVar[int] = 0

    def problem(self, node: UOp) -> str | None:
        """The error in a node of it; None if there is none."""
        return None if self.left >= 0 else f"{self.left} groups cannot be left"

    def step(self, node: UOp, access: Access, program: Program) -> Step:
        """The reference interpreter's step."""
        step: Step = wait_step(self.left)
        return step


for kind in (AsyncCopy, CommitGroup, WaitGroup):
    register_argument(kind)
