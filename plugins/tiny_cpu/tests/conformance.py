"""Everything tinycore promises of a device, run on CPU: `tinycore conformance CPU --suite FILE`."""

from __future__ import annotations

from tiny_testing.suite import *  # noqa: F403  the suite is the point
from tiny_testing.suite.judge import Skips

DEVICE = "CPU"
SKIPS = Skips(
    local_memory="loops run in the threads of a pool, not in groups that meet at barriers",
    image="a processor has no units that read pixels",
    varied="devices of one processor are alike",
)
