"""Number of processors that this process may use.

Floor 0, private to `config`. Imports nothing, not even pathlib, which takes longer than all of it.
"""

import math
import os

UNLIMITED = 1 << 16

AnyPath = str | os.PathLike[str]


def usable_processors(cgroup: AnyPath = "/sys/fs/cgroup") -> int:
    """Processors that affinity and the container's quota leave, at least one."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, min(count, quota(cgroup)))


def quota(cgroup: AnyPath) -> int:
    """Processors the control group allows, rounded up; UNLIMITED where nothing limits them."""
    try:
        if os.path.exists(os.path.join(cgroup, "cpu.max")):  # version 2: "max 100000"
            allowed, period = text_of(cgroup, "cpu.max").split()
        else:
            allowed = text_of(cgroup, "cpu/cpu.cfs_quota_us").strip()
            period = text_of(cgroup, "cpu/cpu.cfs_period_us").strip()
        return UNLIMITED if allowed in {"max", "-1"} else math.ceil(int(allowed) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return UNLIMITED


def text_of(folder: AnyPath, name: str) -> str:
    """The content of a file below a folder."""
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read()
