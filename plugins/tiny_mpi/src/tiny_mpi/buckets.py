"""Buckets: small arrays on their way to one process are sent as one message.

As the gradients in DistributedDataParallel (Li et al., "PyTorch Distributed", 2020), and with a
timer as in TCP (Nagle, RFC 896): what nobody empties is sent after some milliseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from tiny_mpi.calls import Call
from tinycore.groups import Array
from tinycore.plugin import recursive_lock

__all__ = ["Buckets"]

LONGEST_SECONDS: Final = 2e-3
"""Time after which arrays are sent, if the process does not wait for others meanwhile."""


class Buckets:
    """Arrays that are still to be sent, by the rank that gets them.

    `transmit(to, arrays, call)` sends those of one bucket, in their order; `call` was the first.
    """

    def __init__(self, transmit: Callable[[int, list[Array], Call], None]) -> None:
        self.transmit = transmit
        self.lock = recursive_lock()
        self.arrays: dict[int, list[Array]] = {}
        self.calls: dict[int, Call] = {}
        self.bytes: dict[int, int] = {}
        self.filled = threading.Event()
        self.timer: threading.Thread | None = None

    def add(self, to: int, x: Array, call: Call) -> int:
        """Put an array into a bucket; the bytes in it now."""
        with self.lock:
            self.arrays.setdefault(to, []).append(x)
            self.calls.setdefault(to, call)
            self.bytes[to] = self.bytes.get(to, 0) + x.nbytes
            return self.bytes[to]

    def empty_soon(self) -> None:
        """Send everything after some milliseconds."""
        if self.timer is None:
            self.timer = threading.Thread(target=self.empty_late, daemon=True)
            self.timer.start()
        self.filled.set()

    def empty(self) -> None:
        """Send everything."""
        if not self.arrays:
            return
        with self.lock:
            for to in [*self.arrays]:
                del self.bytes[to]
                self.transmit(to, self.arrays.pop(to), self.calls.pop(to))

    def empty_late(self) -> None:
        """Send what stays in buckets, again and again, in a thread of its own."""
        while True:
            self.filled.wait()
            self.filled.clear()
            time.sleep(LONGEST_SECONDS)
            self.empty()
