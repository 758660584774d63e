"""The toolchain of Apple's GPUs, and the device."""

from __future__ import annotations

from typing import Final

from tiny_metal.arch import limits_of, parsed
from tiny_metal.probe import reason
from tiny_metal.program import MslCompiler
from tiny_metal.render import Msl, MslWithBfloat
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import Toolchain

__all__ = ["MetalDevice", "toolchain"]

DEFAULT_ARCH: Final = "apple7"
"""What is written for where there is no GPU and no ARCH is named: M1, which all later ones can."""


def toolchain(arch: str = "") -> Toolchain[Msl]:
    """MSL for an architecture. Raises CompilerUnavailable for one that is not known."""
    found = parsed(arch or DEFAULT_ARCH)
    kind = MslWithBfloat if found.has_bfloat else Msl
    return Toolchain("MSL", str(found), kind(limits_of(found)), MslCompiler(found))


class MetalDevice:
    """An open GPU."""

    def __init__(self, index: int = 0, interface: str = "") -> None:
        raise DeviceUnavailable(reason())
