"""Everything tinycore promises of a device, run on WEBGPU: `tinycore conformance WEBGPU --suite
FILE`."""

from __future__ import annotations

from tiny_testing.suite import *  # noqa: F403  the suite is the point
from tiny_testing.suite.judge import Skips

DEVICE = "WEBGPU"
SKIPS = Skips(
    float64="WGSL has no 64-bit floats",
    host_memory="a buffer that kernels bind cannot be mapped; reads and writes are copies",
    external_pointer="a page, or Dawn, takes no memory that others allocated",
    peer_copy="buffers belong to one device; there is no copy to another",
    graph="render bundles hold draws only; launches are recorded into one command buffer each",
    queues="devices have no signals in common",
    image="textures have formats that kernels would have to be written for; tensors are buffers",
    varied="every adapter runs the same WGSL; what it lacks is in its ARCH",
)
