"""NULL: compiles for any renderer and runs nothing. For looking at kernels, and timing the
compiler.

`DEV=NULL:LLVM` takes the renderer named LLVM of another installed backend, with its compiler, which
needs no device; `DEV=NULL` takes the first of the preferred backend. Memory holds nothing: writing
to it does nothing, and reading it raises, unless NULL_ALLOW_COPYOUT=1 gives zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from tinycore.config import settings
from tinycore.dtype import dtypes
from tinycore.errors import DeviceError
from tinycore.plugin import Backend, ProgramInfo, Toolchain, installed_renderers

__all__ = ["BACKEND", "NullAllocator", "NullRuntime"]

NAME: Final = "NULL"


class OtherRenderers(Mapping[str, Callable[[str], Toolchain[Any]]]):
    """The renderers of all other backends, looked up on demand."""

    def __getitem__(self, name: str) -> Callable[[str], Toolchain[Any]]:
        return installed_renderers(NAME)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(installed_renderers(NAME))

    def __len__(self) -> int:
        return len(installed_renderers(NAME))


class NullAllocator:
    """Memory that takes no room and holds nothing: a handle is the number of its bytes."""

    def alloc(self, size: int) -> int:
        """A span of any size."""
        return size

    def free(self, handle: int) -> None:
        """Nothing to free."""

    def write(self, dst: int, src: memoryview) -> None:
        """Discard the data."""

    def copy_from(self, dst: int, src: int, size: int, source: object) -> None:
        """Nothing, as there is nothing in either."""

    def read(self, dst: memoryview, src: int) -> None:
        """Zeros, if a setting allows. Raises DeviceError otherwise."""
        if not settings.NULL_ALLOW_COPYOUT:
            raise DeviceError(
                "NULL computes nothing, so there is nothing to read. Choose another device by DEV, "
                "or set NULL_ALLOW_COPYOUT=1 to read zeros."
            )
        dst[:] = bytes(dst.nbytes)

    def offset(self, handle: int, size: int, start: int) -> int:
        """A part of it."""
        return size


class NullProgram:
    """A program that does nothing."""

    def __call__(
        self, buffers: Sequence[int], values: Sequence[int], *, wait: bool = False
    ) -> float | None:
        """Nothing, in no time."""
        return 0.0 if wait else None


class NullRuntime:
    """The device."""

    def __init__(self, index: int, interface: str) -> None:
        self.allocator = NullAllocator()

    def load(self, binary: bytes, info: ProgramInfo) -> NullProgram:
        """A program that does nothing, whatever the binary."""
        return NullProgram()

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing to release."""


BACKEND: Final = Backend(
    name=NAME,
    api=(2, 0),
    open=NullRuntime,
    renderers=OtherRenderers(),
    capabilities=frozenset({"local_memory", "peer_copy", *(dtype.name for dtype in dtypes.all)}),
    priority=-1,
)
