"""The verifier of scheduling: invariants of the state after each pass (VERIFY=1).

Floor 3. `uop.verify` knows which nodes are legal at a stage; here are the invariants of a whole
graph. A check raises VerifyError: a fault of a pass, never of a user.
"""

from __future__ import annotations

from itertools import combinations

from tinycore.errors import VerifyError
from tinycore.schedule.kernel import kernel_name, numel
from tinycore.schedule.memory_plan import live_ranges
from tinycore.schedule.state import State
from tinycore.schedule.storage import ALWAYS_STORED, is_leaf
from tinycore.uop.op import Op
from tinycore.uop.shape import is_group
from tinycore.uop.text import inline
from tinycore.uop.verify import verify


def illegal(stage: str, problem: str) -> VerifyError:
    """The error of an invariant that does not hold."""
    return VerifyError(f"illegal after {stage!r}: {problem}")


def sharded(state: State) -> None:
    """The roots are legal, and no root is left on a group of devices."""
    parts = state.sharded.parts
    verify(parts, "tensor")
    for node in parts:
        if is_group(node.device_or_none or ""):
            raise illegal("shard", f"{inline(node)} is on several devices: {node.device}")


def writes(state: State) -> None:
    """The graph that a pass made is legal, and no root is lost."""
    parts = state.sharded.parts
    for node in parts:
        if state.rewritten[node].shape != node.shape:
            raise illegal("partial writes", f"{inline(node)} has another shape than before")
    verify([state.rewritten[node] for node in parts], "tensor")


def stored(state: State) -> None:
    """Roots, nodes whose op writes memory, and what is compared with itself are stored."""
    storage = state.storage
    for node in (*storage.roots, *(n for n in storage.graph if n.op in ALWAYS_STORED)):
        if not is_leaf(node) and node not in storage.reasons:
            raise illegal("choose storage", f"{inline(node)} needs memory and has none")
    if (again := storage.compared_with_itself()) is not None:
        raise illegal("choose storage", f"{inline(again)} is compared with itself, computed again")


def grouped(state: State) -> None:
    """Every value is an output of the group that is its home."""
    home = state.groups.home
    for node in filter(numel, state.storage.reasons):
        if node not in home or node not in home[node].outputs:
            raise illegal("group", f"no kernel stores {inline(node)}")


def acyclic(state: State) -> None:
    """The groups have a topological order. Raises ScheduleError if not."""
    grouped(state)
    state.groups.topological_order(state.storage.roots)


def kernels(state: State) -> None:
    """Every kernel has a source for each of its slots, and every node the shape that it had."""
    for step in state.steps:
        if len(step.kernel.src) < step.kernel.arg.slots:
            raise illegal("emit kernels", f"{step.kernel!r} has {len(step.kernel.src)} sources")
    for node, found in state.cut.items():
        if node.shape != found.shape or node.dtype != found.dtype:
            raise illegal("emit kernels", f"{inline(found)} is no {inline(node)}")


def launches(state: State) -> None:
    """Every kernel is legal, and reads new memory only after one before it wrote it."""
    count = len(state.parameters)
    written: set[int] = set()
    for launch in state.launches:
        if launch.ast.op is not Op.COPY:
            verify(launch.ast, "kernel")
        if early := {n for n in launch.read if n >= count} - written - launch.written:
            what = f"reads memory {min(early)}, which no kernel before has written"
            raise illegal("number memory", f"{kernel_name(launch.ast)} {what}")
        written |= launch.written


def layout(state: State) -> None:
    """Values of one block whose lives overlap share no bytes."""
    assert state.layout is not None
    lives = live_ranges(state.steps, state.memory, len(state.parameters))
    for block in state.layout.blocks:
        for (a, start), (b, other) in combinations(block.places, 2):
            one, two = lives[a], lives[b]
            at_once = one.first <= two.last and two.first <= one.last
            if at_once and start < other + two.size_bytes and other < start + one.size_bytes:
                raise illegal("memory plan", f"memory {a} at {start} and {b} at {other} overlap")
