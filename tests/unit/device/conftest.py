"""A toy device, and installed packages that declare backends, for the tests of the device floor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tinycore.device.backend import Backend
from tinycore.device.discovery import EntryPoint, Plugins
from tinycore.device.registry import Registry
from tinycore.errors import OutOfMemory
from tinycore.plugin import ProgramInfo, Toolchain


class ToyAllocator:
    """Memory as bytearrays, of which there are `capacity` bytes."""

    def __init__(self, capacity: int = 1 << 20) -> None:
        self.capacity = capacity
        self.live: dict[int, bytearray] = {}
        self.allocations: list[int] = []

    def alloc(self, size: int) -> memoryview:
        if size + sum(map(len, self.live.values())) > self.capacity:
            raise OutOfMemory(f"toy memory of {self.capacity} bytes is full")
        block = bytearray(size)
        handle = memoryview(block)
        self.live[id(handle)] = block
        self.allocations.append(size)
        return handle

    def free(self, handle: memoryview) -> None:
        del self.live[id(handle)]

    def write(self, dst: memoryview, src: memoryview) -> None:
        dst[: src.nbytes] = src

    def read(self, dst: memoryview, src: memoryview) -> None:
        dst[:] = src[: dst.nbytes]

    def offset(self, handle: memoryview, size: int, start: int) -> memoryview:
        return handle[start : start + size]


class ToyRuntime:
    """A device with memory, which counts how often it was waited for."""

    def __init__(self, index: int, interface: str) -> None:
        self.index, self.interface = index, interface
        self.allocator = ToyAllocator()
        self.waits = 0
        self.closed = False

    def load(self, binary: bytes, info: ProgramInfo) -> Callable[..., float | None]:
        def program(
            buffers: Sequence[Any], values: Sequence[int], *, wait: bool = False
        ) -> float | None:
            return 0.0 if wait else None

        return program

    def synchronize(self) -> None:
        self.waits += 1

    def close(self) -> None:
        self.closed = True


class ToyCompiler:
    name = "C"
    key = "toy"

    def compile(self, source: str) -> bytes:
        return source.encode()


def toy_toolchain(arch: str) -> Toolchain[str]:
    return Toolchain("C", arch, "a renderer", ToyCompiler())


def make_toy(**changes: Any) -> Backend:
    fields: dict[str, Any] = {
        "name": "TOY",
        "api": (2, 0),
        "open": ToyRuntime,
        "renderers": {"C": toy_toolchain},
        "priority": 200,
    }
    return Backend(**fields | changes)


@pytest.fixture
def toy() -> Callable[..., Backend]:
    """Makes a toy backend; keywords change its fields."""
    return make_toy


@pytest.fixture
def toy_allocator() -> type[ToyAllocator]:
    return ToyAllocator


@pytest.fixture
def toy_runtime() -> type[ToyRuntime]:
    return ToyRuntime


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests start from an environment that names no device."""
    for name in ("DEV", "TINYCORE_DEV", "CPU", "PYTHON", "TOY", "NULL"):
        monkeypatch.delenv(name, raising=False)


TOY_SOURCE = """
from tinycore.plugin import Backend, Toolchain, deferred

BACKEND = Backend(
    name={name!r}, api={api!r}, open=deferred("toy_missing:Runtime"),
    renderers={{"C": deferred("toy_missing:toolchain")}}, priority={priority},
    count=lambda: {count}, probe=lambda: {probe!r}, platforms={platforms!r},
)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., EntryPoint]:
    """Puts a package that declares a backend on sys.path, and returns its entry point."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(
        name: str,
        module: str,
        source: str | None = None,
        distribution: str | None = None,
        presence: str | None = None,
        **fields: Any,
    ) -> EntryPoint:
        given: dict[str, Any] = {
            "name": name, "api": (2, 0), "priority": 0, "count": 1, "probe": "", "platforms": (),
        } | fields  # fmt: skip
        text = TOY_SOURCE.format(**given) if source is None else source
        package = tmp_path / module
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text(text)
        shows = f"[[{name}]]\npriority = {given['priority']}\n" if presence is None else presence
        if shows:
            (package / "presence.toml").write_text(shows)
        owner = distribution or module.replace("_", "-")
        return EntryPoint(name, f"{module}:BACKEND", owner, "0.3.1")

    return write


@pytest.fixture
def registry() -> Callable[..., Registry]:
    """Makes a registry of the given entry points only."""

    def make(*entries: EntryPoint) -> Registry:
        return Registry(Plugins(entries))

    return make
