"""NCCL for groups of processes with a card each, where the library is found (`tiny_mpi.cards`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from tiny_hcq import is_library
from tiny_nv.device import CudaDevice
from tiny_nv.probe import count
from tiny_nv.settings import cuda_settings

__all__ = ["NcclCard", "collectives"]

NAME: Final = "libnccl.so.2"
WHEEL: Final = Path("nvidia", "nccl", "lib", NAME)
"""The library in nvidia-nccl-cu12 and its like, below a folder of packages."""


class NcclCard:
    """A card with a stream for collectives."""

    def __init__(self, index: int) -> None:
        self.device = CudaDevice(index)
        self.stream = self.device.exchange_stream
        self.enter, self.is_idle = self.device.enter, self.device.is_idle
        allocator = self.device.allocator
        self.alloc, self.free = allocator.alloc, allocator.free
        self.write = allocator.write

    def read(self, content: memoryview, address: int) -> None:
        """Copy to the host."""
        self.device.allocator.read(content, address)


def collectives(index: int, sharing: int) -> tuple[str, Callable[[], NcclCard]] | None:
    """The path of NCCL, and what opens a card; None where it, or a card for each, is missing.

    `index` is the number of a process among the `sharing` ones of its machine.
    """
    path = next(filter(is_library, candidates()), None)
    return None if path is None or count() < sharing else (path, partial(NcclCard, index))


def candidates() -> Iterator[str]:
    """Candidate paths of the library, the likeliest first."""
    if cuda_settings.NCCL_LIBRARY:
        yield cuda_settings.NCCL_LIBRARY
        return
    yield from (str(Path(folder) / WHEEL) for folder in sys.path if (Path(folder) / WHEEL).exists())
    yield NAME
