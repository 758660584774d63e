"""`OpenDevice`: a device in use, with its memory and the toolchain that DEV selects.

Floor 1. Imports `backend`, `pool`, `target`, `hooks`. Made by the registry only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from tinycore._locks import lock
from tinycore.device.backend import API_VERSION, Backend
from tinycore.device.discovery import automatic_interfaces, obstacle_of, told, verify_interface
from tinycore.device.hooks import hooks
from tinycore.device.pool import LRUAllocator
from tinycore.device.protocols import (
    ABILITIES,
    RUNTIME_ABILITIES,
    DeviceRuntime,
    Program,
    ProgramInfo,
    SupportsArch,
    SupportsReach,
    Toolchain,
)
from tinycore.device.target import Target
from tinycore.errors import (
    CompilerUnavailable,
    DeviceUnavailable,
    PluginError,
    SettingError,
    UnsupportedError,
)
from tinycore.trace import Trace

trace: Final = Trace("device")

at_close: Final[list[Callable[[OpenDevice], None]]] = []
"""Callbacks for when a device is closed: caches drop what they have of it."""


class OpenDevice:
    """An open device. `name` is the name of tensors' devices: "CPU", "CPU:1"."""

    def __init__(
        self,
        target: Target,
        backend: Backend,
        runtime: DeviceRuntime,
        interface: str,
        targets: Callable[[], tuple[Target, ...]],
    ) -> None:
        self.name = target.name
        self.index = target.index
        self.backend = backend
        self.interface = interface
        self.runtime = runtime
        self.capabilities: frozenset[str] = backend.capabilities
        """Capabilities of the device, of CAPABILITIES."""
        if "varied" in backend.capabilities:
            self.capabilities &= runtime.capabilities | {"varied"}  # type: ignore[attr-defined]
        self._reaches = runtime.reaches if isinstance(runtime, SupportsReach) else None
        self._arch = runtime.arch if isinstance(runtime, SupportsArch) else ""
        self.allocator = LRUAllocator(runtime.allocator, target.name, runtime.synchronize)
        self._targets = targets
        self._toolchains: dict[tuple[str, str], Toolchain[Any]] = {}
        self._chosen: tuple[tuple[Target, ...], Toolchain[Any] | None] = (), None
        """The targets that `toolchain` was asked for last, and its answer."""
        self._lock = lock()
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<OpenDevice {self.name} of {self.backend.name}>"

    @property
    def toolchain(self) -> Toolchain[Any]:
        """The renderer and compiler that DEV selects now, else the best available."""
        targets = self._targets()
        chosen, found = self._chosen
        if chosen is targets and found is not None:  # asked for by every launch outside a capture
            return found
        renderer = arch = ""
        for target in targets:
            if target.device == self.backend.name:
                renderer, arch = target.renderer, target.arch
                self._verify_interface(target)
        found = self.toolchain_for(renderer, arch)
        self._chosen = targets, found
        return found

    def toolchain_for(self, renderer: str = "", arch: str = "") -> Toolchain[Any]:
        """The toolchain with a renderer's name for an architecture; empty means the best there is,
        for this device.

        Raises SettingError for an unknown name, CompilerUnavailable when its compiler is missing.
        """
        key = (renderer, arch or self._arch)
        found = self._toolchains.get(key)
        if found is None:
            with self._lock:
                found = self._toolchains.get(key) or choose_toolchain(
                    self.backend, renderer, arch or self._arch
                )
                self._toolchains[key] = found
        return found

    def _verify_interface(self, target: Target) -> None:
        if target.interface and target.interface != self.interface:
            raise DeviceUnavailable(
                f"{self.name} is open through {self.interface}; choose {target.interface} before "
                f"its first use, or close it: Device.close({self.backend.name!r})"
            )

    def has(self, capability: str) -> bool:
        """True if the device has a capability."""
        return capability in self.capabilities

    def waits_for(self, other: OpenDevice) -> bool:
        """True if the device orders its work with another device's without the host."""
        alike = self.backend is other.backend and self.interface == other.interface
        if not alike or not self.has("queues"):
            return False
        return self._reaches is None or self is other or self._reaches(other.runtime)

    def ability(self, capability: str) -> Any:
        """The allocator, as a capability's protocol. Raises UnsupportedError without it."""
        if capability not in self.capabilities:
            raise UnsupportedError(f"device {self.name} has no capability {capability!r}")
        return self.allocator.allocator

    def load(self, binary: bytes, info: ProgramInfo) -> Program:
        """Make a compiled program ready to launch."""
        program = self.runtime.load(binary, info)
        if not callable(program):
            raise PluginError(
                f"{self.backend.name}: load() returned {class_shown(program)} for {info.name}; "
                "a program is called to launch it"
            )
        return program

    def copier(self, size: int, source: OpenDevice) -> Program:
        """A program that copies from a device for which this one waits by itself."""
        runtime: Any = self.runtime
        program: Program = runtime.copier(size, source.runtime)
        return program

    def synchronize(self) -> None:
        """Wait until all submitted work is done."""
        self.runtime.synchronize()

    def close(self) -> None:
        """Release the device. No effect the second time, or in a forked process."""
        if self.allocator.closed or self._process != os.getpid():
            return
        if closing := hooks.active("tinycore_backend_closing"):
            closing(device=self.name)
        for forget in at_close:
            forget(self)
        self.allocator.close()
        self.runtime.close()


def open_device(
    target: Target, backend: Backend, targets: Callable[[], tuple[Target, ...]]
) -> OpenDevice:
    """Open a device through the interface asked for, else through the first that works of those
    that need not be named.

    Raises DeviceUnavailable with the reason of every interface tried.
    """
    table = backend.interface_table
    verify_interface(backend, target.interface)
    index = target.index
    if target.visible:
        if index >= len(target.visible):
            shown = ",".join(map(str, target.visible))
            raise DeviceUnavailable(f"{target.name} is not among the visible devices {shown}")
        index = target.visible[index]
    failures: list[tuple[str, BaseException]] = []
    if target.interface or not table:
        interfaces = [target.interface]
    else:
        interfaces = automatic_interfaces(backend)
    if not interfaces:
        raise DeviceUnavailable(f"{target.name} cannot be opened: {obstacle_of(backend)}")
    for interface in interfaces:
        try:
            if len(interfaces) > 1 and (reason := obstacle_of(backend, interface)):
                raise DeviceUnavailable(reason)
            runtime = backend.open(index, interface)
            verify_protocol(backend, runtime)
            verify_abilities(backend, runtime)
        except (KeyboardInterrupt, SettingError):
            raise
        except BaseException as error:  # whatever a plugin raises, the next interface is tried
            failures.append((interface, error))
            trace(f"{target.name} cannot be opened{via(interface)}: {told(error)}")
            continue
        return OpenDevice(target, backend, runtime, interface, targets)
    reasons = "; ".join(
        f"{via(interface).strip()}{': ' if interface else ''}{reason_of(error)}"
        for interface, error in failures
    )
    raise DeviceUnavailable(f"{target.name} cannot be opened: {reasons}") from failures[-1][1]


def via(interface: str) -> str:
    """Words for the interface by which a device was reached."""
    return f" through {interface}" if interface else ""


def reason_of(error: BaseException) -> str:
    """The reason of a failure: the text of our own exceptions, and any other with its class."""
    if isinstance(error, DeviceUnavailable | CompilerUnavailable):
        return str(error)
    return told(error)


RUNTIME: Final = ("load", "synchronize", "close")
ALLOCATOR: Final = tuple("alloc free write read offset".split())


def verify_protocol(backend: Backend, runtime: object) -> None:
    """Raise PluginError if the result of `open` lacks a method that every device has."""
    _verify_methods(
        f"{backend.name}: open() returned {class_shown(runtime)}, which", runtime, RUNTIME
    )
    allocator = getattr(runtime, "allocator", None)
    if allocator is None:
        raise PluginError(
            f"{backend.name}: open() returned {class_shown(runtime)}, which has no allocator"
        )
    _verify_methods(f"{backend.name}: its allocator {class_shown(allocator)}", allocator, ALLOCATOR)


def _verify_methods(role: str, owner: object, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not callable(getattr(owner, name, None))]
    if missing:
        raise PluginError(f"{role} lacks {', '.join(f'{name}()' for name in missing)}")


def class_shown(value: object) -> str:
    """The class of a value, None as itself."""
    return "None" if value is None else f"a {type(value).__name__}"


def toolchain_of(backend: Backend, name: str, arch: str) -> Toolchain[Any]:
    """A toolchain as a renderer's maker returns it. Raises PluginError for one that is broken, with
    the versions of the plugin API: a maker for another version may name what is not here.
    """
    try:
        found: object = backend.renderers[name](arch)
    except (KeyboardInterrupt, CompilerUnavailable, DeviceUnavailable, PluginError, SettingError):
        raise
    except BaseException as error:
        theirs, ours = (".".join(map(str, version)) for version in (backend.api, API_VERSION))
        raise PluginError(
            f"{backend.name}: its renderer {name} is broken: {told(error)}. It was written for "
            f"version {theirs} of the plugin API, this tinycore has {ours}: a newer plugin may fit"
        ) from error
    return verified(backend, name, found)


def verified(backend: Backend, name: str, found: object) -> Toolchain[Any]:
    """A toolchain whose compiler has the required methods. Raises PluginError."""
    if not isinstance(found, Toolchain):
        raise PluginError(
            f"{backend.name}: its renderer {name} returned {class_shown(found)}, no Toolchain"
        )
    role = f"{backend.name}: the compiler {class_shown(found.compiler)} of {name}"
    _verify_methods(role, found.compiler, ("compile",))
    for attribute in ("name", "key"):
        value = getattr(found.compiler, attribute, None)
        if not isinstance(value, str):
            raise PluginError(f"{role} must have a text `{attribute}`, not {value!r}")
    return found


def verify_abilities(backend: Backend, runtime: DeviceRuntime) -> None:
    """Raise PluginError when a declared capability lacks its methods."""
    owners = (("allocator ", runtime.allocator, ABILITIES), ("", runtime, RUNTIME_ABILITIES))
    for role, owner, abilities in owners:
        for capability, protocol in abilities.items():
            if capability in backend.capabilities and not isinstance(owner, protocol):
                raise PluginError(
                    f"{backend.name} declares {capability!r}, but its {role}{type(owner).__name__} "
                    f"has not the methods of {protocol.__name__}"
                )


def choose_toolchain(backend: Backend, renderer: str, arch: str) -> Toolchain[Any]:
    """A toolchain of a backend: the one named, which never falls back, or the best available."""
    ranked: Mapping[str, Callable[[str], Toolchain[Any]]] = backend.renderers
    if renderer:
        if renderer not in ranked:
            known = ", ".join(ranked) or "none"
            raise SettingError(f"{backend.name} has no renderer {renderer}; it has {known}")
        return toolchain_of(backend, renderer, arch)
    failures: list[str] = []
    for name in ranked:
        try:
            found = toolchain_of(backend, name, arch)
        except (CompilerUnavailable, DeviceUnavailable) as error:
            failures.append(f"{name}: {error}")
            trace(f"{backend.name} skips {name}: {error}")
            continue
        trace(f"{backend.name} compiles with {name}" + (f" for {found.arch}" if found.arch else ""))
        return found
    reasons = "\n  ".join(failures)
    raise CompilerUnavailable(f"no compiler of {backend.name} can be used:\n  {reasons}")
