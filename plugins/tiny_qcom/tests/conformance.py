"""Everything tinycore promises of a device, run on QCOM: see `tinycore conformance --help`."""

from __future__ import annotations

import numpy

from tiny_testing.suite import *  # noqa: F403  the suite is the point
from tiny_testing.suite.judge import Skips

DEVICE = "QCOM"
SKIPS = Skips(
    float64="an Adreno has no float64",
    rounding="it has no division: a quotient is a product with a reciprocal, rounded twice",
)


def external_memory(content: bytes) -> tuple[int, object]:
    """Pages of this process, which KGSL makes addressable by the device, and what keeps them."""
    pages = numpy.zeros(len(content) + 64, numpy.uint8)
    start = -pages.ctypes.data % 64
    pages[start : start + len(content)] = numpy.frombuffer(content, numpy.uint8)
    return pages.ctypes.data + start, pages
