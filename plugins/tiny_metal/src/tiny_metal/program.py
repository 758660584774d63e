"""MSL as it is: the system compiles it when a program is loaded, and remembers what it compiled."""

from __future__ import annotations

from tiny_metal.arch import Arch

__all__ = ["MslCompiler"]


class MslCompiler:
    """Leaves compiling to the system, which does it for the GPU at hand."""

    name = "MSL"

    def __init__(self, arch: Arch) -> None:
        self.key = f"MSL {arch}"

    def compile(self, source: str) -> bytes:
        """The source, as bytes."""
        return source.encode()

    def assembly(self, source: str) -> str:
        """The source: machine code is not shown by the system."""
        return source
