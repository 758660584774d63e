"""Buckets: small arrays on their way to one process are sent as one message.

As the gradients in DistributedDataParallel (Li et al., "PyTorch Distributed", 2020), and with a
timer as in TCP (Nagle, RFC 896): what nobody empties is sent after some milliseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tiny_mpi.calls import Call
from tinycore.errors import GroupError
from tinycore.groups import Array
from tinycore.plugin import recursive_lock

__all__ = ["Buckets"]

LONGEST_SECONDS: Final = 2e-3
"""Time after which arrays are sent, if the process does not wait for others meanwhile."""


class Buckets:
    """Arrays that are still to be sent, by the rank that gets them.

    `transmit(to, arrays, call)` sends those of one bucket, in their order; `call` was the first.
    Where it fails, what was sent is unknown, so all calls after it raise GroupError.
    """

    def __init__(self, transmit: Callable[[int, list[Array], Call], None]) -> None:
        self.transmit = transmit
        self.lock = recursive_lock()
        self.arrays: dict[int, list[Array]] = {}
        self.calls: dict[int, Call] = {}
        self.bytes: dict[int, int] = {}
        self.filled = threading.Event()
        self.timer: threading.Thread | None = None
        self.failure: BaseException | None = None

    def add(self, to: int, x: Array, call: Call) -> int:
        """Put an array into a bucket; the bytes in it now."""
        with self.lock:
            self.check()
            self.arrays.setdefault(to, []).append(x)
            self.calls.setdefault(to, call)
            self.bytes[to] = self.bytes.get(to, 0) + x.nbytes
            return self.bytes[to]

    def empty_soon(self) -> None:
        """Send everything after some milliseconds."""
        with self.lock:
            if self.timer is None:
                self.timer = threading.Thread(target=self.empty_late, daemon=True)
                self.timer.start()
        self.filled.set()

    def empty(self) -> None:
        """Send everything; all that was added before is sent when it returns."""
        with self.lock:
            self.check()
            for to in [*self.arrays]:
                try:
                    self.transmit(to, self.arrays[to], self.calls[to])
                except BaseException as error:
                    self.failure = error
                    raise
                del self.arrays[to], self.calls[to], self.bytes[to]

    def empty_late(self) -> None:
        """Send what stays in buckets, again and again, in a thread of its own."""
        while self.failure is None:
            self.filled.wait()
            self.filled.clear()
            time.sleep(LONGEST_SECONDS)
            with suppress(Exception):  # the next call raises it
                self.empty()

    def check(self) -> None:
        """Raise GroupError if arrays were lost."""
        if self.failure is not None:
            lost = "; ".join(map(str, self.calls.values()))
            raise GroupError(f"{lost} failed before: {self.failure!r}") from self.failure
