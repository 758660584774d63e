"""List scheduling by liveness: run a kernel early if it frees more bytes than it allocates.

Floor 3. Topological order alone may leave the last reader of a large value far behind the other
readers, and the value alive until then. Such a reader is moved forward to where its operands are
ready, even where a later operand was the last one that it waited for, as the gradient of a weight.
The value then dies before the next one like it is allocated, and its readers are neighbors, which
row fusion (`row_fusion.py`) may make one kernel.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Sequence

from tinycore.schedule.access import Launch
from tinycore.schedule.kernel import nbytes
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


class ListScheduler:
    """The state of one list scheduling: what is done, and remaining uses of temporary memory."""

    def __init__(
        self,
        launches: Sequence[Launch],
        memory: Sequence[UOp],
        parameters: int,
        persistent: Collection[int],
    ) -> None:
        """`memory` is by number. Memory beyond the first `parameters` that is not `persistent` is
        temporary: it is dead when all launches are done.
        """
        self.launches = launches
        self.memory = memory
        self.users: dict[int, list[int]] = defaultdict(list)
        """The launches that use each memory, in their first order."""
        for number, launch in enumerate(launches):
            for place in dict.fromkeys(launch.places):
                self.users[place].append(number)
        temporary = (p for p in self.users if p >= parameters and p not in persistent)
        self.uses_left = Counter({place: len(self.users[place]) for place in temporary})
        """Uses of each temporary memory that are still to come."""
        self.done = [False] * len(launches)

    def run(self) -> list[Launch]:
        """All launches in a dependency order that frees memory early.

        A queue, not a stack: what became ready first runs first, so that both values of a pair
        are freed before the next pair is allocated.
        """
        order: list[Launch] = []
        for number in range(len(self.launches)):
            ready = deque([number])
            while ready:
                if self.done[now := ready.popleft()]:
                    continue
                self.done[now] = True
                order.append(self.launches[now])
                ready += self.freeing_successors(now)
        return order

    def freeing_successors(self, number: int) -> list[int]:
        """Launches that may follow one at once and free memory: the last that use what it used, and
        those that were waiting for its result to free other values."""
        launch = self.launches[number]
        self.uses_left.subtract(self.uses_left.keys() & launch.places)
        found = dict[int, None]()
        for place in launch.places:
            if place not in launch.written and self.uses_left[place] != 1:
                continue
            for n in self.users[place]:
                if not self.done[n]:
                    found[n] = None
                    if place in self.launches[n].written:
                        break
        # Of those that take as much as they free, those that free other values than it has made.
        pay = [n for n in found if (self.bytes_freed(n), self.bytes_freed(n, number)) > (0, 0)]
        return [n for n in pay if self.is_ready(n)]

    def bytes_freed(self, number: int, before: int | None = None) -> int:
        """Bytes of the values that die at a launch, minus those of the values that it defines.

        Of temporary values alone that the launch `before` has not written, if one is given.
        """
        total, known = 0, () if before is None else self.launches[before].written
        for place in dict.fromkeys(self.launches[number].places):
            if place in known or (before is not None and place not in self.uses_left):
                continue
            is_first = self.users[place][0] == number
            if self.uses_left[place] == 1 and not is_first:
                total += nbytes(self.memory[place])
            elif is_first:
                total -= nbytes(self.memory[place])
        return total

    def is_ready(self, number: int) -> bool:
        """True if a launch can be now: no earlier one still to come conflicts over some memory.

        Two readers of the same memory do not conflict.
        """
        launch = self.launches[number]
        for place in launch.places:
            for other in self.users[place]:
                if other >= number:
                    break
                written = launch.written | self.launches[other].written
                if not self.done[other] and place in written:
                    return False
        return True


def overlap_copies(launches: Sequence[Launch], memory: Sequence[UOp]) -> list[Launch]:
    """The launches, with those that wait for copies between devices behind all others.

    So kernels run while copies are on the way: after as many copies in a row as a launch waits for,
    and in the order in which they were among those that wait for as many.
    """
    bases = [m.src[0] if m.op is Op.BUFFER_VIEW else m for m in memory]
    written: Counter[UOp] = Counter()
    """By memory, how many copies in a row are before the end of what wrote to it."""
    read: Counter[UOp] = Counter()
    """By memory, how many are before the start of what has read it since."""
    waits: dict[Launch, int] = {}
    for launch in launches:
        touched = {bases[place] for place in launch.places}
        changed = {bases[place] for place in launch.written}
        start = max([written[b] for b in touched] + [read[b] for b in changed])
        for base in touched:
            read[base] = max(read[base], start)
        for base in changed:
            written[base], read[base] = start + (launch.ast.op is Op.COPY), 0
        waits[launch] = start
    return sorted(launches, key=waits.__getitem__)
