"""`Backend`: the one light object by which a plugin declares a device.

Floor 1. Imports `protocols`, `config`. `deferred` keeps everything heavy out of the declaration, so
importing a plugin costs nothing. Where a backend reaches its devices in several ways, such as a
kernel driver and the PCI bus, it declares an `Interface` for each: `discovery` asks their probes,
and the device string `PCI+AMD` or the variable AMD_IFACE=PCI names one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self, TypeGuard

from tinycore.config import PluginSettings
from tinycore.device.exported import ExportedModel
from tinycore.device.protocols import CAPABILITIES, DeviceRuntime, Toolchain
from tinycore.errors import PluginError


@dataclass(frozen=True, kw_only=True)
class Interface:
    """A way to reach the devices of a backend."""

    probe: Callable[[], str] | None = None
    """Why no device can be reached through it, and what to do about it; "" when all is well. Opens
    nothing. None: `Backend.probe` answers."""
    count: Callable[[], int] | None = None
    """Number of devices reached through it. Opens nothing. None: `Backend.count` answers."""
    automatic: bool = True
    """True if it may be used without being named. False for an interface that changes the machine
    (takes a card from its kernel driver, needs root), and for stand-ins."""
    platforms: tuple[str, ...] = ()
    """Values of `sys.platform` it exists on; those of the backend when empty."""


@dataclass(frozen=True)
class InterfaceState:
    """State of one interface of a backend."""

    name: str
    reason: str
    """Why no device can be reached through it; "" when one can."""
    automatic: bool

    @property
    def is_available(self) -> bool:
        """True if a device can be reached through it."""
        return not self.reason


API_VERSION: Final = (2, 1)
"""(major, minor) of the contract. A plugin names the lowest it needs; its major must be this one.
"""
GUIDE: Final = "docs/write-a-backend.md"
"""Page for authors of plugins, of the repository."""

_WORD: Final = re.compile(r"[A-Z][A-Z0-9]*")


def one_device() -> int:
    """The count of a backend that always has its one device."""
    return 1


@dataclass(frozen=True, kw_only=True)
class Backend:
    """Declaration of a kind of device. Anything heavy is `deferred`.

    Raises PluginError when a field breaks the contract.
    """

    name: str
    """The word users write, in capitals: the name of the entry point as well."""
    api: tuple[int, int]
    """The lowest `API_VERSION` it needs."""
    open: Callable[[int, str], DeviceRuntime]
    """Opens the device with an index, through an interface ("" where there are none)."""
    renderers: Mapping[str, Callable[[str], Toolchain[Any]]]
    """Toolchains by name, the preferred first, each made for an architecture ("" means the device's
    own).

    Raise CompilerUnavailable when the compiler is missing; the next one is tried unless it was
    named.
    """
    count: Callable[[], int] = one_device
    """Number of devices, 0 without a driver. Opens nothing."""
    probe: Callable[[], str] | None = None
    """Why no device can be used, and what to do about it; "" when all is well. Opens nothing."""
    interfaces: tuple[str, ...] | Mapping[str, Interface] = ()
    """Ways to reach the device, the preferred first, each with a probe of its own. Those given by
    their names alone are used without being named, and answered for by `probe` and `count`."""
    capabilities: frozenset[str] = frozenset()
    """Claims, of CAPABILITIES. Abilities are checked when a device is opened; claims of dtypes
    and local memory are believed."""
    priority: int = 0
    """Rank in the automatic choice: accelerators from 200, processors from 100, drivers
    in software from 50, interpreters from 0. Below 0 it is used only when it is named.
    `presence.toml` of its package states it, too, for when this is not imported yet."""
    platforms: tuple[str, ...] = ()
    """Values of `sys.platform` it runs on; any when empty."""
    export: Callable[[ExportedModel, Path], None] | None = None
    """Writes a model to a folder, for `tinycore export`; the weights are there already. None where
    models cannot be exported."""
    dlpack: int | tuple[int, ...] | None = None
    """Its DLDeviceType, by which other libraries take its memory without a copy: 1 is memory of
    the host, 2 of CUDA, 10 of ROCm. Of several the first is what it lends, and all are what it
    takes, such as 2, 3 and 13: memory of CUDA, of the host that is pinned, and managed. None:
    memory is exchanged by copies through the host."""
    priority_here: Callable[[], int] | None = None
    """The priority of what was found on this machine, asked after `count`, for a backend that may
    reach a card or a driver in software; None where `priority` holds in any case. Opens nothing.
    Below what `presence.toml` promised, the automatic choice tries what ranks between."""
    settings: Callable[[], PluginSettings] | None = None
    """Its environment variables, as `tinycore settings` lists them: the class of the table."""

    def __new__(cls, **given: Any) -> Self:  # noqa: D102
        # A plugin of a later version may state fields that are not known here: say which versions.
        known = {field.name for field in fields(cls)}
        api = given.get("api")
        if unknown := ", ".join(sorted(given.keys() - known)):
            ours = ".".join(map(str, API_VERSION))
            why = api_objection(api) or (
                f"states {unknown}, which version {ours} of the plugin API has not: leave it out"
            )
            raise PluginError(f"{given.get('name', 'the backend')} {why}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        problems = [text for text in self._problems() if text]
        if problems:
            raise PluginError(f"Backend {self.name!r}: {'; '.join(problems)}")

    @property
    def interface_table(self) -> Mapping[str, Interface]:
        """The interfaces by name, the preferred first."""
        if isinstance(self.interfaces, Mapping):
            return self.interfaces
        return dict.fromkeys(self.interfaces, Interface())

    @property
    def dlpack_kinds(self) -> tuple[int, ...]:
        """DLDeviceTypes of memory that it takes, the one that it lends first."""
        if self.dlpack is None:
            return ()
        return self.dlpack if isinstance(self.dlpack, tuple) else (self.dlpack,)

    def _problems(self) -> list[str]:
        words = {"name": (self.name,), "renderers": self.renderers, "interfaces": self.interfaces}
        found = [
            f"{field} must be words in capitals, not {word!r}"
            for field, given in words.items()
            # NULL's renderers are those of the others, and not known before they are.
            if field != "renderers" or isinstance(given, dict)
            for word in given
            if not _WORD.fullmatch(str(word))
        ]
        if not _is_version(self.api):
            found.append(f"api must be (major, minor), not {self.api!r}")
        if isinstance(self.renderers, dict) and not self.renderers:
            found.append("it has no renderers")
        interfaces: Mapping[str, object] = self.interface_table
        found += [
            f"interface {name} must be an Interface, not {one!r}"
            for name, one in interfaces.items()
            if not isinstance(one, Interface)
        ]
        callables: dict[str, object] = {"open": self.open, "count": self.count}
        optional = ("probe", "priority_here", "settings", "export")
        callables |= {f: value for f in optional if (value := getattr(self, f)) is not None}
        if isinstance(self.renderers, dict):
            callables |= {f"renderer {name}": make for name, make in self.renderers.items()}
        for name, one in interfaces.items():
            for field in ("probe", "count"):
                if (value := getattr(one, field, None)) is not None:
                    callables[f"{field} of interface {name}"] = value
        found += [f"{field} must be callable" for field, x in callables.items() if not callable(x)]
        if type(self.priority) is not int:
            found.append(f"priority must be a whole number, not {self.priority!r}")
        found += [
            f"{field} must be a {kind.__name__} of words, not {given!r}"
            for field, kind in (("platforms", tuple), ("capabilities", frozenset))
            if not _are_words(given := getattr(self, field), kind)
        ]
        if not _are_words(self.capabilities, frozenset):
            return found
        if not all(type(kind) is int for kind in self.dlpack_kinds) or self.dlpack == ():
            found.append(f"dlpack must be a DLDeviceType or several, not {self.dlpack!r}")
        unknown = sorted(set(self.capabilities) - CAPABILITIES.keys())
        if unknown:
            found.append(
                f"unknown capabilities {', '.join(unknown)}; known are {', '.join(CAPABILITIES)}"
            )
        return found


def _are_words(given: object, kind: type[Collection[object]]) -> bool:
    kinds = (set, frozenset) if kind is frozenset else kind
    return isinstance(given, kinds) and all(isinstance(word, str) for word in given)


def _is_version(api: object) -> TypeGuard[tuple[int, int]]:
    return isinstance(api, tuple) and len(api) == 2 and all(isinstance(x, int) for x in api)


def api_objection(api: object) -> str:
    """Why this core cannot take a backend written for version `api`; "" when it can."""
    if not _is_version(api):
        return f"declares api={api!r}, which is not (major, minor)"
    major, minor = api
    if major == API_VERSION[0] and minor <= API_VERSION[1]:
        return ""
    ours = ".".join(map(str, API_VERSION))
    advice = (
        "upgrade tinycore, e.g. `pip install --upgrade tinycore`"
        if (major, minor) > API_VERSION
        else "upgrade the plugin, e.g. `pip install --upgrade <the plugin>`; its author finds what "
        f"has changed under Versions in {GUIDE}"
    )
    return f"needs version {major}.{minor} of the plugin API, this tinycore has {ours}: {advice}"
