"""Stand-ins: devices without their hardware, for tables and for tests of tensors.

STANDIN=QCOM:IR3 pytest tests/unit/tensor tests/unit/nn
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, NamedTuple

from tiny_testing.suite.run import register_named

ROOT: Final = Path(__file__).parents[1]
SUPPORT: Final = "tests/support"


class StandIn(NamedTuple):
    """Player of a device: the plugin whose tests have it, and the backend to register."""

    plugin: str
    backend: str

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of its modules."""
        return tuple(str(ROOT / folder) for folder in (f"plugins/{self.plugin}/tests", SUPPORT))

    def register(self) -> None:
        """Put the backend in the place of the plugin's own."""
        sys.path[:0] = [folder for folder in self.folders if folder not in sys.path]
        register_named(self.backend)


NVS: Final = {
    f"NV:PTX-{name.replace('_', '-')}": StandIn("tiny_nv", f"simulated_nv:{name}")
    for name in (
        *(
            f"{card}_{branch}"
            for card in ("AMPERE", "ADA", "HOPPER", "BLACKWELL")
            for branch in (570, 580, 590, 610)
        ),
        "AMPERE_570_OPTIONS",
        "HOPPER_580_OPTIONS",
        "BLACKWELL_610_OPTIONS",
    )
}
"""NVIDIA's cards on each branch of the kernel driver; and one card of each form of launch
descriptors with every option of NV on."""

STANDINS: Final = {
    "AMD": StandIn("tiny_amd", "simulated_amd:BACKEND"),
    "AMD-AQL": StandIn("tiny_amd", "simulated_amd:BACKEND_AQL"),
    "AMD-GFX1030": StandIn("tiny_amd", "simulated_amd:BACKEND_RDNA2"),
    "AMD-GFX1201": StandIn("tiny_amd", "simulated_amd:BACKEND_RDNA4"),
    "AMD-GFX942": StandIn("tiny_amd", "simulated_amd:BACKEND_CDNA3"),
    "AMD-PCI": StandIn("tiny_amd", "simulated_am:BACKEND"),
    "AMD-USB": StandIn("tiny_amd", "simulated_usb:BACKEND"),
    "AMD:HIP": StandIn("tiny_amd", "simulated_amd:BACKEND"),
    "AMD:HIP-AQL": StandIn("tiny_amd", "simulated_amd:BACKEND_AQL"),
    "AMD:HIP-GFX1201": StandIn("tiny_amd", "simulated_amd:BACKEND_RDNA4_HIP"),
    "AMD:HIP-GFX942": StandIn("tiny_amd", "simulated_amd:BACKEND_CDNA3_HIP"),
    "CUDA": StandIn("tiny_nv", "simulated:BACKEND"),
    "CUDA:PTX": StandIn("tiny_nv", "simulated:BACKEND"),
    **NVS,
    "METAL": StandIn("tiny_metal", "simulated_metal:BACKEND"),
    "METAL-M3": StandIn("tiny_metal", "simulated_metal:BACKEND_M3"),
    "METAL-OLD": StandIn("tiny_metal", "simulated_metal:BACKEND_OLD"),
    "QCOM:IR3": StandIn("tiny_qcom", "simulated_qcom:BACKEND"),
    "QCOM:QCOMCL": StandIn("tiny_qcom", "simulated_qcom:BACKEND"),
}
"""Stand-ins by device; a suffix after "-" names the hardware that is played."""


def device_of(name: str) -> str:
    """The device that tensors are on: `NV:PTX` of `NV:PTX-ADA-590`."""
    return name.partition("-")[0]
