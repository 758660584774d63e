"""Everything tinycore promises of a device, run on NV: see `tinycore conformance --help`."""

from __future__ import annotations

from tinycore.testing.suite import *  # noqa: F403  the suite is the point
from tinycore.testing.suite.judge import Skips

DEVICE = "NV"
SKIPS = Skips()
