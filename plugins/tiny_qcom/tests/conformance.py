"""Everything tinycore promises of a device, run on QCOM: see `tinycore conformance --help`."""

from __future__ import annotations

from tinycore.testing.suite import *  # noqa: F403  the suite is the point
from tinycore.testing.suite.judge import Skips

DEVICE = "QCOM"
SKIPS = Skips(
    float64="an Adreno has no float64",
    rounding="it has no division: a quotient is a product with a reciprocal, rounded twice",
)
