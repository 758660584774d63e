"""METAL without a Mac: the plugin itself, on a mock of macOS whose kernels clang compiles.

`BACKEND` is an M1 with a second GPU beside it, `M3` and `OLD` others; the plugin's own code is
behind all of them, and opening a device puts the mock in macOS's place.

    export PYTHONPATH=plugins/tiny_metal/tests:tests/support
    tinycore conformance METAL --register simulated_metal:BACKEND
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mock_metal.metal import Gpu, Mac

from tiny_metal import BACKEND as PLUGIN
from tiny_metal import _lib
from tiny_metal.device import MetalDevice
from tinycore.plugin import Backend

__all__ = ["M1", "M3", "MACS", "OLD", "backend_of", "pair"]

COMMON: Final = (1001, 1002, 1003, 1004, 1005, 1006, 3001, 3002, 3003, 2002)
M1: Final = Gpu("Mock M1", (*COMMON, 1007, 5001), needs_pipelines_first=True)
M3: Final = Gpu("Mock M3", (*COMMON, 1007, 1008, 1009, 5001))
OLD: Final = Gpu(
    *("Mock Radeon", (3001, 3002, 3003, 2001, 2002), (2, 4)), unified=False, math_mode=False
)
"""A discrete GPU of an Intel Mac with macOS 12: no bfloat, and memory of its own."""


def pair(gpu: Gpu) -> tuple[Gpu, Gpu]:
    """A GPU, and another of its kind."""
    return gpu, replace(gpu, name=f"{gpu.name} 2", registry=gpu.registry + 1)


def backend_of(mac: Mac) -> Backend:
    """The plugin's backend on a mocked Mac; it claims what its GPUs say that they can."""

    def opened(index: int, interface: str) -> MetalDevice:
        with _lib.use(mac):
            return MetalDevice(index, interface)

    lacking = set() if any(gpu.unified for gpu in mac.gpus) else {"host_memory"}
    return replace(
        PLUGIN,
        open=opened,
        count=lambda: len(mac.gpus),
        probe=lambda: "",
        capabilities=PLUGIN.capabilities - lacking,
    )


MACS: Final = {"M1": M1, "M3": M3, "OLD": OLD}


def __getattr__(name: str) -> Backend:
    """BACKEND, BACKEND_M3 and BACKEND_OLD, each on a Mac of its own, made when it is asked for."""
    word, _, kind = name.partition("_")
    if word != "BACKEND" or (kind or "M1") not in MACS:
        raise AttributeError(name)
    return backend_of(Mac(pair(MACS[kind or "M1"])))
