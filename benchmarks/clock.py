"""The clock that samples are taken with: the one on the wall, or what processors worked for us.

On a machine that others use too, only the second says anything: it leaves out what they did.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Final

__all__ = ["PROCESSOR", "SETTING", "seconds"]

SETTING: Final = "BENCHMARKS_CLOCK"
"""The variable of the environment that says which one it is; `main` sets it for its workers."""
PROCESSOR: Final = "processor"


def worked() -> float:
    """Seconds that processors worked for this process, and for those that it has waited for."""
    times = os.times()
    return process_time() + times.children_user + times.children_system


seconds: Final[Callable[[], float]] = (
    worked if os.environ.get(SETTING) == PROCESSOR else perf_counter
)
"""The clock."""
