"""Launches that write to memory from before, each of which happens once, whatever interrupts it.

Floor 4. A launch into new memory may be done again: nobody has seen the memory. A launch that adds
to what stands in memory may not. So such a run first does all that can fail (compile, allocate),
and then launches with one call of C that notes each launch as it returns: where a device's launch
is one native call, no signal is handled between the launch and the note. What is interrupted after
its first launch is finished, at once or by the next one who computes anything. One thread at a time
is in here, so that a write which two threads ask for is done by one of them.
See docs/threads.md.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import call
from types import FrameType
from typing import Final

from tinycore._locks import in_child, lock, writing
from tinycore.device.buffer import Buffer
from tinycore.engine.compile import CompiledRunner
from tinycore.engine.counters import trace, update_stats
from tinycore.engine.run import ExecItem, recordings
from tinycore.engine.watch import watches
from tinycore.errors import DeviceError
from tinycore.schedule.order import buffer_of
from tinycore.schedule.results import Computed, Told
from tinycore.uop.node import UOp
from tinycore.uop.op import Op


class Launches:
    """The launches of one run, how many are done, and who is told after the last."""

    def __init__(
        self, items: list[ExecItem], values: Mapping[str, int], computed: Computed, told: Told
    ) -> None:
        for item in items:
            if recordings:
                recordings.innermost.note(item)
            for buffer in item.bufs:
                buffer.ensure_allocated()
        wait = trace.on or bool(watches)
        self.items = items
        self.values = values
        self.calls = [launch_of(item, values, wait) for item in items]
        self.done: list[float | None] = []
        """What the launches returned that are done."""
        self.counted = 0
        """How many of them counters know of."""
        self.computed = computed
        self.told = told
        self.turn = lock()
        """Held while somebody is at it."""
        self.is_torn = False
        """Whether a fork came while another thread was at it."""

    def finish(self) -> None:
        """Do what is not done."""
        with self.turn, deferred(self.calls):
            self.done.extend(map(call, self.calls[len(self.done) :]))
        self.count()
        self.told(self.computed)

    def count(self) -> None:
        """Tell counters, hooks and DEBUG=2 of launches."""
        while self.counted < len(self.done):
            number, self.counted = self.counted, self.counted + 1
            runner, seconds = self.items[number].runner, self.done[number]
            for watch in watches:
                watch.note(runner, seconds)
            update_stats(runner.name, runner.device, runner.estimate, seconds)

    def give_up(self) -> None:
        """Tell what is done. The rest is computed anew by who wants it."""
        left = self.items[len(self.done) :]
        missing = {whole(item.bufs[slot]) for item in left for slot in item.written}
        given = {
            node: memory
            for node, memory in self.computed.given.items()
            if missing.isdisjoint(whole(buffer_of(b)) for b in memory_in(memory))
        }
        self.told(Computed(given, []))


def memory_in(node: UOp) -> list[UOp]:
    """The memory that a node is made of."""
    return [n for n in node.toposort() if n.op in (Op.BUFFER, Op.BUFFER_VIEW)]


def whole(buffer: Buffer) -> Buffer:
    """The buffer that one is a part of."""
    return buffer if buffer.base is None else buffer.base


unfinished: Final[list[Launches]] = []
"""What was begun, and neither finished nor given up, in this order."""


def run(launches: Launches) -> None:
    """Do some launches once, and tell it. After an interrupt all of them are done, or none."""
    unfinished.append(launches)
    try:
        launches.finish()
        unfinished.remove(launches)
    except BaseException:
        settle(launches)
        raise


def settle(launches: Launches) -> None:
    """After an interrupt: finish what was begun, give up what was not."""
    if launches.done:
        launches.finish()
    if launches in unfinished:
        unfinished.remove(launches)


def finish() -> None:
    """Finish what interrupts have left undone. Waits for another thread that is at it."""
    if not unfinished:
        return
    with writing:
        for launches in list(unfinished):
            if launches.is_torn:
                raise DeviceError(
                    "this process was forked while another thread of its parent wrote to tensors, "
                    "so what they hold here is half old and half new. Fork before threads compute"
                )
            if launches.turn.locked():  # a frame below this one is at it
                continue
            try:
                settle(launches)
            except Exception:  # it has failed twice
                unfinished.remove(launches)
                launches.give_up()
                raise


def launch_of(item: ExecItem, values: Mapping[str, int], wait: bool) -> Callable[[], float | None]:
    """A launch as a call without arguments, of C alone where the device can do that."""
    runner = item.runner
    if not wait and isinstance(runner, CompiledRunner) and runner.is_bindable:
        return runner.bound(item.bufs, values)
    return Shielded(partial(runner.launch, item.bufs, values, wait))


class Shielded:
    """A launch in lines of Python: Ctrl-C in the middle of it comes after it."""

    def __init__(self, launch: Callable[[], float | None]) -> None:
        self.launch = launch

    def __call__(self) -> float | None:
        """Launch; the seconds it took, if somebody times it."""
        return self.launch()


@contextmanager
def deferred(calls: Sequence[object]) -> Iterator[None]:
    """Ctrl-C comes after what is inside, if lines of Python are among it."""
    is_main = threading.current_thread() is threading.main_thread()
    in_python = is_main and any(isinstance(c, Shielded) for c in calls)
    handler = signal.getsignal(signal.SIGINT) if in_python else None
    if not callable(handler):
        yield
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if came:
        handler(signal.SIGINT, came[0])


def torn() -> None:
    """In a forked child: what other threads were at is half done there."""
    for launches in unfinished:
        launches.is_torn = True


in_child(torn)
