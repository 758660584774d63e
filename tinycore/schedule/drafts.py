"""Kernels in the making, and which has to wait for which.

Floor 3. A draft waits for what it reads, for the version of memory that it overwrites, and for
whoever reads that version.

Every draft has a level above those of all it waits for, kept while drafts are added and joined. So
whether one comes after another is found by looking at what lies between their levels, not at all
that came before. Only drafts that wait for each other, until one of them reads a saved copy, have
no such levels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tinycore.errors import ScheduleError
from tinycore.schedule.kernel import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


@dataclass(eq=False)
class Draft:
    """A kernel in the making: the values it stores, and what it needs from elsewhere."""

    outputs: list[UOp]
    needs: dict[UOp, None]  # stored nodes read, as they stand in the tensor graph
    old: dict[UOp, UOp] = field(default_factory=dict)
    """Versions of memory that are about to be replaced, and their saved copies."""
    replaced: dict[UOp, UOp] = field(default_factory=dict)
    """Outputs, and what is computed for them instead."""
    level: int = 0

    @property
    def first(self) -> UOp:
        """The output that gave the draft its loops."""
        return self.outputs[0]


class Drafts:
    """All drafts of one call of `kernelize`."""

    def __init__(self) -> None:
        self.all: list[Draft] = []
        self.home: dict[UOp, Draft] = {}
        """The draft that stores a node."""
        self.reading: dict[UOp, list[Draft]] = defaultdict(list)
        self.writing: dict[UOp, list[Draft]] = defaultdict(list)
        """The drafts that overwrite a version of memory."""
        self.has_levels = True

    def add(self, draft: Draft) -> None:
        """A new draft."""
        self.all.append(draft)
        self.note(draft, draft.outputs, draft.needs)

    def join(self, home: Draft, draft: Draft) -> None:
        """Let one draft store what another would have stored."""
        more = [n for n in draft.needs if n not in home.needs]
        home.outputs += draft.outputs
        home.needs.update(draft.needs)
        self.note(home, draft.outputs, more)

    def note(self, draft: Draft, outputs: Iterable[UOp], needs: Iterable[UOp]) -> None:
        """What a draft stores, and reads, beside what is noted already."""
        self.home.update(dict.fromkeys(outputs, draft))
        for node in needs:
            self.reading[node].append(draft)
        for node in outputs:
            for version in versions(node):
                self.writing[version].append(draft)
        if self.has_levels:
            self.lift(draft)

    def lift(self, draft: Draft) -> None:
        """Put a draft above all it waits for, and then all that wait for it above it.

        A level beyond the number of drafts is that of a circle: levels are given up then.
        """
        stack = [draft]
        while stack:
            raised = stack.pop()
            level = 1 + max([d.level for d in self.before(raised)], default=0)
            if level > len(self.all):
                self.has_levels = False
                return
            if level > raised.level or raised is draft:
                raised.level = max(level, raised.level)
                stack += self.after(raised)

    def after(self, draft: Draft) -> list[Draft]:
        """The drafts that must not run before one."""
        found = [d for node in draft.outputs for d in self.reading.get(node, ())]
        found += [d for node in draft.needs for d in self.writing.get(node, ())]
        found += [d for node in draft.outputs for d in self.writing.get(node, ())]
        return [d for d in found if d is not draft]

    def readers(self, version: UOp) -> list[Draft]:
        """The drafts that read a buffer as one particular ASSIGN, or none, left it."""
        return [d for d in self.reading.get(version, ()) if version not in d.old]

    def comes_after(self, later: Iterable[Draft], draft: Draft) -> bool:
        """Whether one of some drafts is `draft`, or has to wait for it."""
        seen: set[int] = set()
        stack = list(later)
        while stack:
            found = stack.pop()
            if found is draft:
                return True
            if id(found) not in seen and not (self.has_levels and found.level <= draft.level):
                seen.add(id(found))
                stack.extend(self.before(found))
        return False

    def before(self, draft: Draft) -> list[Draft]:
        """The drafts that must run before one."""
        found = [self.home.get(draft.old.get(n, n)) for n in draft.needs]
        for node in draft.outputs:
            if node.op is Op.ASSIGN:
                for version in versions(node):
                    found += [self.home.get(version), *self.readers(version)]
        return [d for d in found if d is not None and d is not draft]

    def in_order(self) -> list[Draft]:
        """Drafts after all they wait for: what they read, and who reads what they overwrite."""
        ordered: dict[int, Draft] = {}
        open_: set[int] = set()
        stack = list(reversed(self.all))
        while stack:
            draft = stack[-1]
            waiting = [d for d in self.before(draft) if id(d) not in ordered]
            if id(draft) in ordered or not waiting:
                ordered.setdefault(id(draft), stack.pop())
                continue
            if id(draft) in open_:
                names = ", ".join(n.op.name for n in draft.outputs)
                raise ScheduleError(
                    f"kernels that wait for each other, at the one that stores {names}"
                )
            open_.add(id(draft))
            stack.extend(waiting)
        return list(ordered.values())


def versions(node: UOp) -> list[UOp]:
    """What the target of an ASSIGN was before it: each earlier ASSIGN, then the BUFFER."""
    found: list[UOp] = []
    while node.op is Op.ASSIGN:
        node = base_of(node.src[0])
        found.append(node)
    return found
