"""Copies of boxes and the phases that they end (TMA, mbarrier), as instructions of tinycore.

`Phases` begins a barrier, `TensorCopy` a copy that its phase waits for, and `WaitPhase` waits. What
they do in the reference interpreter is in `box_steps.py`, where kernels use them in `boxes.py`.

NVIDIA, "PTX ISA" 9.0, sections 9.7.9.27.5, "cp.async.bulk.tensor", and 9.7.13.15, "mbarrier".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from tiny_nv.tensor_map import TensorMap
from tinycore.dtype import dtypes
from tinycore.plugin import deferred
from tinycore.render.base import LinearKernel
from tinycore.uop.instruction import Effect
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.text import register_argument

__all__ = ["Phases", "TensorCopy", "WaitPhase", "cluster_of", "maps_of"]

Access = Callable[..., Any]
Program = Sequence[UOp]
Step = Callable[[Any], None]

begin_step: Final = deferred("tiny_nv.box_steps:begin_step")
copy_step: Final = deferred("tiny_nv.box_steps:copy_step")
wait_step: Final = deferred("tiny_nv.box_steps:wait_step")


@dataclass(frozen=True)
class Phases(Effect):
    """A barrier begins at the INDEX; `copies` copies of boxes end each of its phases."""

    copies: int

    def problem(self, node: UOp) -> str | None:
        """The error in a node of it; None if there is none."""
        if self.copies < 1:
            return f"a phase is ended by at least one copy, not {self.copies}"
        return None if is_barrier(node.src) else "Phases begin at one INDEX of shared uint64"

    def step(self, node: UOp, access: Access, program: Program) -> Step:
        """The reference interpreter's step."""
        step: Step = begin_step(node, access)
        return step


@dataclass(frozen=True)
class TensorCopy(Effect):
    """One thread begins to copy a box of a tensor to shared memory.

    Sources: the INDEX of the box in shared memory, that of its barrier, the buffer, and the place
    of the box along each dimension. Where `cluster` is not 1, the box goes to all groups of a
    cluster, each of which expects it where the gate of the second INDEX holds.
    """

    map: TensorMap
    cluster: int = 1

    places: ClassVar[int] = 2
    is_background: ClassVar[bool] = True

    @property
    def alignment(self) -> int:
        """Bytes that the array of the box begins at a multiple of."""
        return self.map.alignment

    @property
    def groups(self) -> int:
        """Neighboring groups that it is copied to."""
        return self.cluster

    @property
    def extra(self) -> str:
        """The map, which launches encode for the address of their buffer."""
        return self.map.to_json()

    def problem(self, node: UOp) -> str | None:
        """The error in a node of it; None if there is none."""
        if len(node.src) != 3 + len(self.map.sizes):
            return "TensorCopy has two INDEX, a buffer, and a coordinate for each dimension"
        to, barrier, buffer, *coordinates = node.src
        spaces = [getattr(s.dtype, "space", "") for s in (to, barrier, buffer)]
        if spaces != ["local", "local", "global"] or to.op is not Op.INDEX:
            return f"TensorCopy is from global to local memory, not {spaces}"
        if any(s.dtype is not dtypes.index for s in coordinates):
            return "coordinates are of type index"
        if (self.cluster > 1) != (len(barrier.src) == 3):
            return "boxes for a cluster say which groups expect them, and no others do"
        return self.map.problem()

    def step(self, node: UOp, access: Access, program: Program) -> Step:
        """The reference interpreter's step."""
        step: Step = copy_step(node, access)
        return step


@dataclass(frozen=True)
class WaitPhase(Effect):
    """The phase of the barrier at the INDEX whose parity is the second source has ended."""

    def problem(self, node: UOp) -> str | None:
        """The error in a node of it; None if there is none."""
        is_right = is_barrier(node.src[:1]) and len(node.src) == 2
        return None if is_right else "WaitPhase has the INDEX of a barrier, and a parity"

    def step(self, node: UOp, access: Access, program: Program) -> Step:
        """The reference interpreter's step."""
        step: Step = wait_step(node, access)
        return step


for kind in (TensorMap, Phases, TensorCopy, WaitPhase):
    register_argument(kind)


def is_barrier(sources: tuple[UOp, ...]) -> bool:
    """True for one INDEX of a word of 8 bytes in shared memory."""
    if len(sources) != 1 or sources[0].op is not Op.INDEX:
        return False
    kind = sources[0].dtype
    return getattr(kind, "space", "") == "local" and getattr(kind, "base", None) is dtypes.uint64


def maps_of(kernel: LinearKernel) -> tuple[TensorMap, ...]:
    """The maps of buffers that a program takes after its values, in order."""
    found = (effect.map for effect in kernel.effects if isinstance(effect, TensorCopy))
    return tuple(dict.fromkeys(found))


def cluster_of(kernel: LinearKernel) -> int:
    """Number of neighboring groups that copy boxes for each other; barriers are then theirs."""
    return max([effect.groups for effect in kernel.effects], default=1)
