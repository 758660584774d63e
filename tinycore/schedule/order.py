"""List scheduling by liveness: run a kernel early if it frees more bytes than it allocates.

Floor 3. Topological order alone may leave the last reader of a large value far behind the other
readers, and the value alive until then. Such a reader is moved forward to where its operands are
ready. The value then dies before the next one like it is allocated, and its readers are neighbors,
which row fusion (`row_fusion.py`) may make one kernel.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Sequence

from tinycore.schedule.access import Launch
from tinycore.schedule.items import Step
from tinycore.schedule.kernel import nbytes
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


def order_for_liveness(
    steps: Sequence[Step], memory: Sequence[UOp], parameters: int, persistent: Collection[int]
) -> list[Step]:
    """The steps in a dependency order that frees memory early.

    `memory` is by number. Memory beyond the first `parameters` that is not `persistent` is
    temporary: it is dead when all steps are done.
    """
    return ListScheduler(steps, memory, parameters, persistent).run()


class ListScheduler:
    """The state of one list scheduling: scheduled steps, and remaining uses of temporary memory."""

    def __init__(
        self,
        steps: Sequence[Step],
        memory: Sequence[UOp],
        parameters: int,
        persistent: Collection[int],
    ) -> None:
        self.steps = steps
        self.memory = memory
        self.users: dict[int, list[int]] = defaultdict(list)
        """The steps that use each memory, in their first order."""
        for number, step in enumerate(steps):
            for place in dict.fromkeys(step.places):
                self.users[place].append(number)
        temporary = (p for p in self.users if p >= parameters and p not in persistent)
        self.uses_left = Counter({place: len(self.users[place]) for place in temporary})
        """Uses of each temporary memory that are still to come."""
        self.done = [False] * len(steps)
        self.writes: dict[int, frozenset[int]] = {}
        """Memoized answers of `written`."""

    def run(self) -> list[Step]:
        """All steps in their new order.

        A queue, not a stack: what became ready first runs first, so that both values of a pair
        are freed before the next pair is allocated.
        """
        order: list[Step] = []
        for number in range(len(self.steps)):
            ready = deque([number])
            while ready:
                if self.done[now := ready.popleft()]:
                    continue
                self.done[now] = True
                order.append(step := self.steps[now])
                ready += self.freeing_successors(step)
        return order

    def freeing_successors(self, step: Step) -> list[int]:
        """Steps that may follow a step at once and free memory that it used."""
        found = []
        for place in dict.fromkeys(step.places):
            if place in self.uses_left:
                self.uses_left[place] -= 1
                if self.uses_left[place] == 1:
                    found.append(next(n for n in self.users[place] if not self.done[n]))
        return [n for n in found if self.is_ready(n) and self.bytes_freed(n) > 0]

    def bytes_freed(self, number: int) -> int:
        """Bytes of the values that die at a step, minus those of the values that it defines."""
        total = 0
        for place in dict.fromkeys(self.steps[number].places):
            is_first = self.users[place][0] == number
            if self.uses_left[place] == 1 and not is_first:
                total += nbytes(self.memory[place])
            elif is_first:
                total -= nbytes(self.memory[place])
        return total

    def is_ready(self, number: int) -> bool:
        """True if a step can run now: no earlier step still to run conflicts over some memory.

        Two readers of the same memory do not conflict.
        """
        places = self.steps[number].places
        for place in places:
            for other in self.users[place]:
                if other >= number:
                    break
                if not self.done[other] and place in self.written(number) | self.written(other):
                    return False
        return True

    def written(self, number: int) -> frozenset[int]:
        """The memory that a step writes to."""
        if (found := self.writes.get(number)) is None:
            ast, places, *_ = self.steps[number]
            found = self.writes[number] = Launch(ast, places).written
        return found


def overlap_copies(steps: Sequence[Step], memory: Sequence[UOp]) -> list[int]:
    """Numbers of the steps, with those that wait for copies between devices behind all others.

    So kernels run while copies are on the way: after as many copies in a row as a step waits for,
    and in the order in which they were among those that wait for as many.
    """
    scheduler = ListScheduler(steps, memory, 0, ())
    bases = [m.src[0] if m.op is Op.BUFFER_VIEW else m for m in memory]
    written: Counter[UOp] = Counter()
    """By memory, how many copies in a row are before the end of what wrote to it."""
    read: Counter[UOp] = Counter()
    """By memory, how many are before the start of what has read it since."""
    waits = []
    for number, step in enumerate(steps):
        touched = {bases[place] for place in step.places}
        changed = {bases[place] for place in scheduler.written(number)}
        start = max([written[b] for b in touched] + [read[b] for b in changed])
        for base in touched:
            read[base] = max(read[base], start)
        for base in changed:
            written[base], read[base] = start + (step.ast.op is Op.COPY), 0
        waits.append(start)
    return sorted(range(len(steps)), key=waits.__getitem__)
