"""How many processors this process may use.

Floor 0, private to `config`. Imports nothing.
"""

import math
import os
from pathlib import Path

UNLIMITED = 1 << 16


def usable_processors(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Processors that affinity and the container's quota leave, at least one."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, min(count, quota(cgroup)))


def quota(cgroup: Path) -> int:
    """Processors the control group allows, rounded up; UNLIMITED where nothing limits them."""
    try:
        if (cgroup / "cpu.max").exists():  # version 2: "max 100000" or "150000 100000"
            allowed, period = (cgroup / "cpu.max").read_text().split()
        else:
            allowed = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
        return UNLIMITED if allowed in {"max", "-1"} else math.ceil(int(allowed) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return UNLIMITED
