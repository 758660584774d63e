"""Everything tinycore promises of a device, run on PYTHON: `tinycore conformance PYTHON --suite
FILE`."""

from __future__ import annotations

from tiny_testing.suite import *  # noqa: F403  the suite is the point
from tiny_testing.suite.judge import Skips

DEVICE = "PYTHON"
SKIPS = Skips(
    graph="a launch is interpreted when it is asked for; asking for many at once saves nothing",
    queues="a launch is done when it returns, so there is nothing to wait for",
    varied="interpreters are alike",
)
