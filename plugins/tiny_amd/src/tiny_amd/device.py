"""The toolchain of AMD cards, and the device, which has no way to a card yet."""

from __future__ import annotations

from typing import Final, NoReturn

from tiny_amd.arch import arch_of, limits_of
from tiny_amd.llvm import LlvmCompiler
from tiny_amd.render import AmdLlvm
from tinycore.errors import DeviceUnavailable
from tinycore.plugin import Toolchain

__all__ = ["AmdDevice", "count", "driver", "reason", "toolchain"]

DEFAULT_ARCH: Final = "gfx1100"
"""What is compiled for where no ARCH is named."""


def toolchain(arch: str = "") -> Toolchain[AmdLlvm]:
    """LLVM IR compiled by llvmlite for an architecture. Raises CompilerUnavailable."""
    name = arch or DEFAULT_ARCH
    return Toolchain("LLVM", name, AmdLlvm(limits_of(arch_of(name))), LlvmCompiler(name))


def count() -> int:
    """How many cards can be used: none by this version."""
    return 0


def driver() -> list[str]:
    """What decides which cards there are: the nodes of the kernel's driver."""
    return ["/dev/kfd", "/dev/dri"]


def reason() -> str:
    """Why there is none."""
    return (
        "this version of tiny-amd compiles for AMD cards and drives none. DEV=NULL:LLVM:gfx1100 "
        "compiles kernels and runs nothing; a card is reached through OpenCL by tiny-cl, DEV=CL"
    )


class AmdDevice:
    """A card. Opening one raises DeviceUnavailable."""

    def __init__(self, index: int = 0, interface: str = "") -> None:
        raise_unavailable()


def raise_unavailable() -> NoReturn:
    """Say why no card can be opened."""
    raise DeviceUnavailable(reason())
