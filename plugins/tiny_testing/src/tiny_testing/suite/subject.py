"""`Subject`: the device under test, and the few things that cases do with it.

Opened at the first need, so that what is said of a declaration is tried before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import numpy
from numpy.typing import NDArray

from tiny_testing.kernels import Bench
from tiny_testing.suite.judge import Skips
from tinycore import Context, Device, Tensor
from tinycore.device.backend import Backend
from tinycore.device.discovery import Candidate
from tinycore.device.open_device import OpenDevice
from tinycore.device.protocols import Allocator, DeviceRuntime, Handle, Toolchain
from tinycore.device.target import Target, parse_targets
from tinycore.dtype import DType
from tinycore.errors import SettingError, UnknownDevice
from tinycore.render.base import Limits, Renderer
from tinycore.uop.host_bytes import decode, encode

__all__ = ["Array", "ExternalMemory", "Subject"]

Array: TypeAlias = NDArray[Any]
ExternalMemory: TypeAlias = Callable[[bytes], tuple[int, object]]
"""Makes device memory without tinycore: the address of a copy of the bytes, and what owns it."""


class Subject:
    """A device under test: `target` is written as in DEV, "CPU" or "CPU:1:LLVM".

    `external_memory` is asked for memory to wrap, where that is no host memory. Raises SettingError
    unless one device is named.
    """

    def __init__(
        self,
        target: str,
        skips: Mapping[str, str] | None = None,
        external_memory: ExternalMemory | None = None,
    ) -> None:
        targets = parse_targets(target)
        if len(targets) != 1:
            raise SettingError(f"conformance is tested of one device, not of {target!r}")
        self.target: Target = targets[0]
        self.skips = Skips() if skips is None else skips
        self.external_memory = external_memory

    def __repr__(self) -> str:
        return f"<Subject {self.target}>"

    @property
    def name(self) -> str:
        """The device as tensors name it: "CPU", "CPU:1"."""
        return self.target.name

    @contextmanager
    def chosen(self) -> Iterator[None]:
        """Inside, DEV names this device, so tensors and toolchains are of it."""
        with Context(DEV=str(self.target)):
            yield

    # --- the declaration

    @property
    def candidate(self) -> Candidate:
        """The candidate that provides the backend. Raises UnknownDevice."""
        found = Device.plugins.find(self.target.device)
        if found is None:
            Device.canonicalize(self.target.device)  # raises, saying what is installed
            raise UnknownDevice(f"no backend is named {self.target.device}")
        return found

    @property
    def backend(self) -> Backend:
        """The declaration. Raises what `Device.backend` raises."""
        return Device.backend(self.target.device)

    def claims(self, word: str) -> bool:
        """True if the backend declares a capability."""
        return word in self.backend.capabilities

    # --- the device

    @property
    def device(self) -> OpenDevice:
        """The device, opened."""
        return Device[self.name]

    @property
    def runtime(self) -> DeviceRuntime:
        """The runtime that the backend opened."""
        return self.device.runtime

    @property
    def allocator(self) -> Allocator:
        """The backend's own allocator, without the core's pool before it."""
        return self.runtime.allocator

    @property
    def toolchain(self) -> Toolchain[Renderer]:
        """The renderer and compiler under test."""
        return self.device.toolchain_for(self.target.renderer, self.target.arch)

    @property
    def limits(self) -> Limits:
        """The limits by which plans are made."""
        return self.toolchain.renderer.limits

    @property
    def bench(self) -> Bench:
        """Runs kernels written by hand."""
        return Bench(self.runtime, self.toolchain)

    def close_if_lost(self) -> bool:
        """Close the device if it is open and no longer copies, so that the next use opens it."""
        if all(device.name != self.name for device in Device.opened()) or self.copies():
            return False
        with suppress(Exception):  # it may fail at everything, and is forgotten either way
            Device.close(self.target.device)
        return True

    def copies(self) -> bool:
        """True if the device, opened if it is closed, takes and returns bytes."""
        content = b"conformance"
        try:
            with self.memory(content) as handle:
                return self.read(handle, len(content)) == content
        except Exception:  # a device that is lost may raise anything
            return False

    # --- memory

    @contextmanager
    def memory(self, content: bytes | int) -> Iterator[Handle]:
        """A block with the given bytes, or of a size, freed at the end."""
        size = content if isinstance(content, int) else len(content)
        handle = self.allocator.alloc(size)
        if not isinstance(content, int):
            self.allocator.write(handle, memoryview(content))
        try:
            yield handle
        finally:
            self.runtime.synchronize()
            self.allocator.free(handle)

    def read(self, handle: Handle, size: int) -> bytes:
        """The first bytes of a block."""
        found = bytearray(size)
        self.allocator.read(memoryview(found), handle)
        return bytes(found)

    # --- tensors

    def tensor(self, array: Array, dtype: DType) -> Tensor:
        """A tensor in memory of the device; numbers are rounded to the dtype."""
        stored = encode(numpy.asarray(array), dtype)
        numbers = decode(stored, dtype)
        return Tensor(numbers, device=self.name, dtype=dtype).contiguous().realize()
