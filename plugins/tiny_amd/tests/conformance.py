"""Everything tinycore promises of a device, run on AMD: see `tinycore conformance --help`."""

from __future__ import annotations

from tiny_testing.suite import *  # noqa: F403  the suite is the point
from tiny_testing.suite.judge import Skips

DEVICE = "AMD"
SKIPS = Skips()
