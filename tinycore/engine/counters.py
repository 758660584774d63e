"""Counters of launches: `GlobalCounters`, the line of DEBUG=2 per kernel, and launch profilers.

Floor 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tinycore.device.hooks import hooks
from tinycore.device.pool import memory
from tinycore.trace import Trace
from tinycore.uop.origins import short

trace = Trace("run")


@dataclass(frozen=True)
class Estimate:
    """The work of one launch: arithmetic operations, and bytes of distinct memory touched.

    A multiply-add counts as two operations; index arithmetic and comparisons of indices do not
    count.
    """

    ops: int = 0
    bytes: int = 0


class Counters:
    """Totals since the process began or since `reset`. `GlobalCounters` is the one instance."""

    def __init__(self) -> None:
        self.global_ops = 0
        self.global_mem = 0
        self.time_sum_s = 0.0
        self.kernel_count = 0

    def count(self, estimate: Estimate, kernels: int) -> None:
        """Add launches to the totals of work."""
        self.kernel_count += kernels
        self.global_ops += estimate.ops
        self.global_mem += estimate.bytes

    def reset(self) -> None:
        """Set the totals of work, time and kernels to zero, and the peak to the memory in use."""
        self.__init__()  # type: ignore[misc]
        memory.reset_peak()

    @property
    def mem_used(self) -> int:
        """Bytes of device memory that buffers hold now, on all devices."""
        return memory.used

    @property
    def mem_peak(self) -> int:
        """The most bytes that buffers held at one time since `reset`, the devices' added up."""
        return memory.peak

    @property
    def mem_used_per_device(self) -> dict[str, int]:
        """The bytes in use, by device."""
        return memory.per_device


GlobalCounters: Final = Counters()


def update_stats(
    name: str,
    device: str,
    estimate: Estimate,
    seconds: float | None,
    *,
    jit: bool = False,
    metadata: Sequence[str] = (),
) -> None:
    """Add one launch to the totals; with DEBUG=2, print a line about it.

    `seconds` is None for a launch that nobody timed.
    """
    GlobalCounters.count(estimate, 1)
    if seconds:
        GlobalCounters.time_sum_s += seconds
    if ran := hooks.active("tinycore_kernel_ran"):
        ran(kernel=name, device=device, seconds=seconds)
    if trace.on:
        trace(f"{stats_line(name, device, estimate, seconds, jit)}  {short(metadata)}".rstrip())


def stats_line(name: str, device: str, estimate: Estimate, seconds: float | None, jit: bool) -> str:
    """`<device> <number> <name> <time> us <rate> GFLOP/s <rate> GB/s`, aligned."""
    head = f"{device:<8}{'jit ' if jit else ''}{GlobalCounters.kernel_count:5d} {name:<36}"
    if not seconds:
        return f"{head} {'':>10}  {estimate.ops / 1e6:9.2f} MFLOP {estimate.bytes / 1e6:9.2f} MB"
    return (
        f"{head} {seconds * 1e6:9.1f} us {estimate.ops / seconds / 1e9:8.2f} GFLOP/s"
        f" {estimate.bytes / seconds / 1e9:8.2f} GB/s"
    )


class LaunchProfiler:
    """Observer of launches and captures. While one is active, every launch is synchronous.

    Runners and buffers are those of `ExecItem`, metadata that of `Kernel`.
    """

    def unobserved(self, step: Any) -> Any:
        """The callback for (seconds, begin) of the replay of a `CapturedStep` that begins; None to
        have its launches made one by one.
        """
        return None

    def scheduled(self, *facts: Any) -> None:
        """Take a `Schedule` that is about to run, its graph, its policy and what varies."""

    def note(self, event: str, *facts: Any) -> None:
        """Take an event other than a launch.

        "compiled", with a runner, its source, "" if it comes from the disk cache, and seconds;
        "failed", with the name of a kernel that could not be compiled or launched, its device, its
        metadata, and the error.
        """

    def record(
        self,
        runner: object,
        seconds: float | None,
        bufs: Sequence[Any] = (),
        metadata: Sequence[str] = (),
        ended: float | None = None,
    ) -> None:
        """Add a completed launch; `seconds` is None for one that was not timed.

        It has returned at `ended` (`perf_counter`), or just now.
        """


profilers: Final[list[LaunchProfiler]] = []
"""The active profilers."""


def report(event: str, *facts: Any) -> None:
    """Let all profilers note an event."""
    for profiler in profilers:
        profiler.note(event, *facts)
