"""Steps that end the use of more memory than they begin, done as soon as they can be.

Floor 3. The order in which a walk meets kernels puts sources first, and says nothing else: the last
reader of a large value may come long after the others, and the value waits for it. Such a reader is
moved forward, to where all that it reads is there. Then the value is gone before the next one like
it is made, and its readers are neighbors, which may become one kernel (`strips.py`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Sequence

from tinycore.schedule.launch import Launch
from tinycore.schedule.step import Step
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


def sooner(
    steps: Sequence[Step], memory: Sequence[UOp], parameters: int, lasting: Collection[int]
) -> list[Step]:
    """The steps, each after all it depends on, and those that free memory as early as they may be.

    `memory` is by number; of what is not among the first `parameters`, only what is `lasting` is
    read when all steps are done.
    """
    return Order(steps, memory, parameters, lasting).found()


class Order:
    """Steps on their way into an order."""

    def __init__(
        self,
        steps: Sequence[Step],
        memory: Sequence[UOp],
        parameters: int,
        lasting: Collection[int],
    ) -> None:
        self.steps = steps
        self.memory = memory
        self.users: dict[int, list[int]] = defaultdict(list)
        """The steps that use some memory, in their first order."""
        for number, step in enumerate(steps):
            for place in dict.fromkeys(step.places):
                self.users[place].append(number)
        passing = (p for p in self.users if p >= parameters and p not in lasting)
        self.left = Counter({place: len(self.users[place]) for place in passing})
        """How many of the users of memory that passes are still to be done."""
        self.done = [False] * len(steps)
        self.known: dict[int, frozenset[int]] = {}
        """What `written` has found."""

    def found(self) -> list[Step]:
        """All steps in their order."""
        order: list[Step] = []
        for number in range(len(self.steps)):
            waiting = deque([number])
            while waiting:
                if self.done[now := waiting.popleft()]:
                    continue
                self.done[now] = True
                order.append(step := self.steps[now])
                waiting += self.freeing_after(step)
        return order

    def freeing_after(self, step: Step) -> list[int]:
        """What can follow a step that was just done, and frees memory that this used."""
        found = []
        for place in dict.fromkeys(step.places):
            if place in self.left:
                self.left[place] -= 1
                if self.left[place] == 1:
                    found.append(next(n for n in self.users[place] if not self.done[n]))
        return [n for n in found if self.is_ready(n) and self.gain(n) > 0]

    def gain(self, number: int) -> int:
        """The bytes that a step is the last to use, less those that it is the first to use."""
        total = 0
        for place in dict.fromkeys(self.steps[number].places):
            is_first = self.users[place][0] == number
            if self.left[place] == 1 and not is_first:
                total += self.bytes_of(place)
            elif is_first:
                total -= self.bytes_of(place)
        return total

    def bytes_of(self, place: int) -> int:
        """The size of memory."""
        node = self.memory[place]
        return math.prod(node.shape) * node.dtype.itemsize

    def is_ready(self, number: int) -> bool:
        """Whether a step shares no memory with an earlier one to be done, unless both read it."""
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
        if (found := self.known.get(number)) is None:
            ast, places, *_ = self.steps[number]
            copies = ast.op is Op.COPY
            found = frozenset(places[:1]) if copies else Launch(ast, places).written
            self.known[number] = found
        return found
