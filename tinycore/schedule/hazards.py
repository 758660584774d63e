"""Hazards (write after read): memory that is overwritten before its last read is copied first.

Floor 3. The dependence graph orders readers of a version of memory before its writer. That fails
for a reader that depends on the writer, or that is the writer's own kernel and moves elements
around. Such a kernel reads a saved copy of the version, made by one more kernel.
"""

from __future__ import annotations

from tinycore.schedule.dependence import KernelGroup
from tinycore.schedule.kernel import custom_of, memory_of
from tinycore.schedule.nests import KernelGroups
from tinycore.schedule.partial_writes import is_partial
from tinycore.schedule.storage import Reason
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


def save_overwritten(groups: KernelGroups) -> KernelGroups:
    """The groups, where no kernel reads a version of memory after it was overwritten."""
    for node in list(groups.home):
        for version in groups.overwritten(node):
            for reader in groups.readers(version):
                if reads_too_late(groups, node, reader, version):
                    reader.saved[version] = saved_copy(groups, version)
                    groups.has_levels = False
    return groups


def reads_too_late(groups: KernelGroups, node: UOp, reader: KernelGroup, version: UOp) -> bool:
    """True if a kernel may read a version of memory after `node` has overwritten it."""
    writer = groups.home[node]
    if reader is writer:
        return moves_elements(groups, node, writer, version)
    if groups.home.get(version) is reader:
        return False  # it stores this version itself, so a copy would come too late for it
    # Any other reader is ordered before the writer, unless it depends on the writer.
    return groups.depends([reader], writer)


def moves_elements(groups: KernelGroups, node: UOp, writer: KernelGroup, version: UOp) -> bool:
    """True if the kernel of an ASSIGN may read elements of a version that it has overwritten."""
    repeats = is_partial(node) and node.src[1].op is Op.SCATTER
    one_way = groups.image_of(node) is not None  # a kernel reads an image, or writes it
    return repeats or one_way or not reads_in_place(groups, writer, groups.memory_of(version))


def reads_in_place(groups: KernelGroups, group: KernelGroup, target: UOp) -> bool:
    """True if each element of `target` is read only by the iteration that overwrites it.

    Custom kernels are assumed to be safe; their author guarantees it.
    """
    if custom_of(group.first) is not None:
        return True
    ast, memory = groups.lower(group)
    slots = {number for number, m in enumerate(memory) if memory_of(m) is target}
    touched = [
        n for n in ast.toposort() if n.op in (Op.LOAD, Op.STORE) and n.src[0].src[0].arg in slots
    ]
    stored = {n.src[0] for n in touched if n.op is Op.STORE}
    return all(n.src[0] in stored for n in touched)


def saved_copy(groups: KernelGroups, version: UOp) -> UOp:
    """A copy of the present content of a buffer, made by a separate kernel."""
    copy = UOp(Op.CONTIGUOUS, version.dtype, (version,), "saved")
    if copy not in groups.home:
        groups.add(KernelGroup([copy], {version: None}))
        groups.storage.store(copy, Reason.SAVED)
    return copy
