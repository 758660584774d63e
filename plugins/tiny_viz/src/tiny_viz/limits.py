"""Limits of a device, measured by kernels of tinycore itself: a product of matrices, and a copy.

They are what a kernel's time is compared with. They are measured once for a device and kept in the
disk cache.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Final

from tinycore import Context, Device, Tensor, cache
from tinycore.config import cpu_count
from tinycore.engine.counters import LaunchProfiler, profilers
from tinycore.errors import TinycoreError

__all__ = ["limits_of", "measured"]

SIDE: Final = 1024
"""Rows of the matrices that are multiplied."""
ELEMENTS: Final = 1 << 23
"""Elements that are read and written: more than caches hold."""
REPEATS: Final = 5
FEW: Final = 64
"""Rows of the matrices of a first trial."""
PATIENCE: Final = 0.02
"""Seconds that the first trial may take: an emulator takes minutes for what is measured."""
TABLE: Final = "limits"
SLOW: Final = frozenset({"PYTHON", "NULL"})
"""Devices without a limit worth measuring: an interpreter, and one that computes nothing."""


def limits_of(devices: Sequence[str]) -> list[tuple[str, float, float]]:
    """Operations and bytes per second of each device, 0 where they are not known."""
    return [(device, *measured(device)) for device in devices]


def measured(device: str) -> tuple[float, float]:
    """Operations and bytes per second of a device, from the disk cache or measured now."""
    if device.partition(":")[0] in SLOW:
        return 0.0, 0.0
    try:
        toolchain = Device[device].toolchain
        key = f"{device} {toolchain.name} {toolchain.arch} {cpu_count()}"
        if found := cache.get(TABLE, key):
            flops, moved = json.loads(found)
            return float(flops), float(moved)
        with Context(DEBUG=0, TRACE="", VIZ=0, BEAM=0, JIT=1, NOOPT=0, DEV=device):
            if trial(device) > PATIENCE:
                return 0.0, 0.0
            rates = products(device), copies(device)
        cache.put(TABLE, key, json.dumps(rates).encode())
    except TinycoreError:
        return 0.0, 0.0
    return rates


def products(device: str) -> float:
    """Operations per second of a product of two matrices of float32."""
    left, right = (Tensor.rand(SIDE, SIDE, device=device).realize() for _ in range(2))
    return 2 * SIDE**3 / fastest(lambda: left @ right)


def copies(device: str) -> float:
    """Bytes per second that are read and written by `x + 1`."""
    x = Tensor.zeros(ELEMENTS, device=device).contiguous().realize()
    return 2 * ELEMENTS * x.element_size() / fastest(lambda: x + 1)


def trial(device: str) -> float:
    """Seconds that pass while small matrices are multiplied: a device may tell others."""
    x = Tensor.zeros(FEW, FEW, device=device).contiguous().realize()
    found = float("inf")
    for _ in range(3):  # compiled at the first
        began = time.perf_counter()
        (x @ x).realize()
        Device[device].synchronize()
        found = min(found, time.perf_counter() - began)
    return found


class Total(LaunchProfiler):
    """The seconds of all launches."""

    seconds = 0.0

    def record(self, runner: object, seconds: float | None, *about: object) -> None:
        """Add a launch."""
        self.seconds += seconds or 0.0


def fastest(compute: Callable[[], Tensor]) -> float:
    """The least seconds that the launches of a computation took together."""
    found = float("inf")
    for _ in range(REPEATS):
        profiler = Total()
        profilers.append(profiler)
        began = time.perf_counter()
        try:
            compute().realize()
        finally:
            profilers.remove(profiler)
        found = min(found, profiler.seconds or time.perf_counter() - began)
    return found
