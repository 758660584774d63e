"""Discovery: the installed backends, and the state of each.

Floor 1. Imports `backend`, `config`, `errors`. Nothing is looked for before the first
need; then the entry points are read once, and a plugin is imported when its own device is asked
for.
"""

from __future__ import annotations

import enum
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tinycore._deferred import Deferred
from tinycore._locks import recursive_lock
from tinycore.config import PluginSettings, settings
from tinycore.device.backend import API_VERSION, Backend, InterfaceState, api_objection
from tinycore.device.protocols import Toolchain
from tinycore.errors import CompilerUnavailable, PluginError, SettingError

if TYPE_CHECKING:
    from importlib import metadata

Opener = Callable[[str], Toolchain[Any]]

BACKEND_GROUP: Final = "tinycore.backends"
CORE: Final = "tinycore"
"""The distribution that this package comes in."""

DENIED: Final = "TINYCORE_PLUGINS_DENY names {}; take it out of there to use it"
"""Reason for a backend that the setting excludes."""

BUILT_IN: Final = {
    "NULL": "tinycore.builtin.null:BACKEND",
    "PYTHON": "tinycore.builtin.python:BACKEND",
}
"""The core's own entry points, for when its metadata is missing: frozen apps, a bare source tree.
"""


NONE_NAMED: Final[Mapping[str, str]] = {}

T = TypeVar("T")


class State(enum.Enum):
    """The states of a device, from installed to open."""

    FOUND = "found"  # an entry point names it; not imported yet
    BLOCKED = "blocked"  # a setting leaves it out, or two packages claim its name
    INCOMPATIBLE = "incompatible"  # its declaration does not fit this core
    IMPORT_FAILED = "import-failed"
    NO_HARDWARE = "no-hardware"  # no device, no driver, the wrong system, or opening it failed
    READY = "ready"
    OPEN = "open"


@dataclass(frozen=True)
class DeviceState:
    """The known facts of one device."""

    name: str
    state: State
    reason: str
    distribution: str
    version: str
    error: BaseException | None = None
    interfaces: tuple[InterfaceState, ...] = ()

    def __str__(self) -> str:
        origin = f"{self.distribution} {self.version}".strip()
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.name} ({origin}) is {self.state.value}{reason}"


@dataclass(frozen=True)
class EntryPoint:
    """One line of a distribution's metadata."""

    name: str
    reference: str
    distribution: str
    version: str


@cache
def _groups() -> dict[str, tuple[EntryPoint, ...]]:
    from importlib.metadata import distributions  # noqa: PLC0415  20 ms, at the first need of a device

    found: dict[str, dict[EntryPoint, None]] = {}
    seen: set[str] = set()
    for distribution in distributions():
        try:
            entries = _entries_of(distribution)
        except Exception as error:  # whatever a damaged file makes of the parser
            warnings.warn(
                f"the metadata of {_place_of(distribution)} is damaged ({told(error)}), so its "
                "plugins are left out; install the package anew",
                stacklevel=2,
            )
            continue
        for group, item in entries:
            # Of a distribution that is on sys.path twice, the first is the one that is imported.
            key = f"{item.distribution} {group} {item.name}"
            if key not in seen:
                seen.add(key)
                found.setdefault(group, {})[item] = None
    return {group: tuple(entries) for group, entries in found.items()}


def _entries_of(distribution: metadata.Distribution) -> list[tuple[str, EntryPoint]]:
    """The entry points of one distribution that concern us, with their groups."""
    ours = [e for e in distribution.entry_points if e.group.startswith(f"{CORE}.")]
    if not ours:
        return []
    name, version = _distribution_name(distribution), distribution.version or ""
    return [(e.group, EntryPoint(e.name, e.value, name, version)) for e in ours]


def _place_of(distribution: metadata.Distribution) -> str:
    """Folder of a distribution's metadata, which names it even where its files cannot be read."""
    return str(getattr(distribution, "_path", None) or distribution)


def _distribution_name(distribution: metadata.Distribution) -> str:
    return (distribution.metadata["Name"] or "?").replace("_", "-").lower()


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, each distribution counted once."""
    return _groups().get(group, ())


def offered(group: str, name: str, extra: str) -> Any:
    """The object that a package offers by a name in a group. Raises PluginError without one."""
    for entry in entry_points(group):
        if entry.name == name:
            return Deferred(entry.reference).resolve()
    raise PluginError(f'{name} comes with a package: `pip install "tinycore[{extra}]"`')


@cache
def extras() -> frozenset[str] | None:
    """The extras that the installed core offers, None where its metadata is missing."""
    from importlib.metadata import PackageNotFoundError, metadata  # noqa: PLC0415

    try:
        return frozenset(metadata(CORE).get_all("Provides-Extra") or ())
    except PackageNotFoundError:
        return None


@dataclass
class Candidate:
    """One claim to a device's name: by an entry point, or registered by the program."""

    name: str
    reference: str
    distribution: str
    version: str
    backend: Backend | None = None
    state: State = State.FOUND
    reason: str = ""
    error: BaseException | None = field(default=None, repr=False)
    priority_here: int | None = None
    """The backend's priority on this hardware, once it was probed."""
    interface: str = ""
    """The interface that `state` is about; "" for those that need not be named."""

    @property
    def priority(self) -> int:
        """Rank in the automatic choice, as far as that is known."""
        if self.priority_here is not None:
            return self.priority_here
        return self.backend.priority if self.backend else 0

    @property
    def is_plugin(self) -> bool:
        """True if another package declares it: neither the core nor this program."""
        return bool(self.reference) and self.distribution != CORE

    @property
    def is_contested(self) -> bool:
        """True if two packages claim its name."""
        return self.state is State.BLOCKED and self.error is not None

    @property
    def origin(self) -> str:
        """The distribution with its version."""
        return f"{self.distribution} {self.version}".strip()

    def fail(self, state: State, reason: str, error: BaseException | None = None) -> None:
        """Note why it cannot be used."""
        if error is not None:
            leave_frames(error)
        self.state, self.reason, self.error = state, reason, error

    def load(self) -> Backend | None:
        """The declaration, imported at the first call; None if it cannot be used."""
        if self.backend is None and self.state is State.FOUND:
            self._import()
        return self.backend

    def check(self, interface: str = "") -> None:
        """Find out, without opening it, whether the device can be used: through the interface that
        is named, else through one that need not be.
        """
        if interface != self.interface and self.state in (State.READY, State.NO_HARDWARE):
            self.state, self.reason, self.error = State.FOUND, "", None
        if self.state is not State.FOUND or (backend := self.load()) is None:
            return
        verify_interface(backend, interface)
        self.interface = interface
        if reason := wrong_platform(backend.platforms):
            self.fail(State.NO_HARDWARE, reason)
            return
        try:
            reason = obstacle_of(backend, interface)
            if not reason and backend.priority_here:
                self.priority_here = _answer(backend, "priority_here", backend.priority_here, int)
        except (KeyboardInterrupt, SettingError):
            raise
        except PluginError as error:
            self.fail(State.INCOMPATIBLE, str(error), error)
            return
        except BaseException as error:
            self.fail(State.NO_HARDWARE, f"looking for devices failed: {told(error)}", error)
            return
        if reason:
            self.fail(State.NO_HARDWARE, reason)
        else:
            self.state = State.READY

    def interface_states(self) -> tuple[InterfaceState, ...]:
        """States of all interfaces, including those that must be named; () if there are none.

        A backend that cannot be loaded here has none.
        """
        backend = self.backend
        if backend is None or wrong_platform(backend.platforms):
            return ()
        table = backend.interface_table
        return tuple(
            InterfaceState(name, reported_obstacle(backend, name), one.automatic)
            for name, one in table.items()
        )

    def _import(self) -> None:
        try:
            found = Deferred(self.reference).resolve()
        except ImportError as error:
            if newer := wanted_of_core(error):
                self.fail(State.INCOMPATIBLE, newer, error)
            elif isinstance(error, ModuleNotFoundError):
                self.fail(State.IMPORT_FAILED, self._missing(error), error)
            else:
                self.fail(State.IMPORT_FAILED, self._raised(error), error)
        except PluginError as error:
            self.fail(State.INCOMPATIBLE, str(error), error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin may raise what it likes; the rest goes on
            self.fail(State.IMPORT_FAILED, self._raised(error), error)
        else:
            self._accept(found)

    def _raised(self, error: BaseException) -> str:
        return f"importing {self.reference} raised {told(error)}"

    def _missing(self, error: ModuleNotFoundError) -> str:
        """Distinguish a plugin whose own module is missing from one that lacks a dependency."""
        module = self.reference.partition(":")[0]
        missing = error.name or "?"
        if module == missing or module.startswith(f"{missing}."):
            return (
                f"its own module {missing} is missing, so the installation is damaged: "
                f"`pip install --force-reinstall {self.distribution}`"
            )
        return (
            f"{self.distribution} needs the module {missing}, which is not installed: "
            f"`pip install --upgrade {self.distribution}` brings what it declares, else install it"
        )

    def _accept(self, found: object) -> None:
        if not isinstance(found, Backend):
            kind = type(found).__name__
            self.fail(State.INCOMPATIBLE, f"{self.reference} is no Backend, but of type {kind}")
        elif objection := api_objection(found.api):
            self.fail(State.INCOMPATIBLE, objection.replace("<the plugin>", self.distribution))
        elif found.name != self.name:
            text = f"{self.reference} declares the name {found.name}, its entry point {self.name}"
            self.fail(State.INCOMPATIBLE, text)
        else:
            self.backend = found


def leave_frames(error: BaseException) -> None:
    """Keep the traceback as text: frames hold what their callers do, such as tensors."""
    error.add_note("".join(traceback.format_tb(error.__traceback__)))
    below: BaseException | None = error
    while below is not None:
        below.__traceback__ = None
        below = below.__cause__ or below.__context__


def verify_interface(backend: Backend, interface: str) -> None:
    """Raise SettingError for an interface that a backend does not have."""
    table = backend.interface_table
    if interface and interface not in table:
        known = ", ".join(table) or "none"
        raise SettingError(f"{backend.name} has no interface {interface}; it has {known}")


def wrong_platform(platforms: tuple[str, ...]) -> str:
    """Why it cannot run on this operating system; "" when it can."""
    if not platforms or sys.platform.startswith(platforms):
        return ""
    return f"it runs on {', '.join(platforms)}, and this is {sys.platform}"


def obstacle_of(backend: Backend, interface: str = "") -> str:
    """Why a backend reaches no device through the interface named, or through any that need not be
    named; "" when it reaches one. Raises PluginError for an answer of another type.
    """
    table = backend.interface_table
    if not table:
        return _obstacle(backend, "")
    if interface in table:
        return _obstacle(backend, interface)
    reasons = {}
    for name in automatic_interfaces(backend):
        reasons[name] = _obstacle(backend, name)
        if not reasons[name]:
            return ""
    by_name = [f"{name}+{backend.name}" for name in table if name not in reasons]
    if len(set(reasons.values())) == 1:
        found = [next(iter(reasons.values()))]
    else:
        found = [f"{name}: {reason}" for name, reason in reasons.items()]
    if by_name:
        found.append(f"used only where it is named: {', '.join(f'DEV={one}' for one in by_name)}")
    return "; ".join(found)


def automatic_interfaces(backend: Backend) -> list[str]:
    """The interfaces that are used without being named, the preferred first."""
    return [name for name, one in backend.interface_table.items() if one.automatic]


def reported_obstacle(backend: Backend, interface: str) -> str:
    """`obstacle_of` for a report: an exception of the plugin is a reason too."""
    try:
        return obstacle_of(backend, interface)
    except (KeyboardInterrupt, SettingError):
        raise
    except PluginError as error:
        return str(error)
    except BaseException as error:
        return f"looking for devices failed: {told(error)}"


def _obstacle(backend: Backend, interface: str) -> str:
    """Why no device can be reached through one interface; "" for a backend without interfaces."""
    one = backend.interface_table.get(interface)
    if one and (reason := wrong_platform(one.platforms)):
        return reason
    probe = (one and one.probe) or backend.probe
    if probe is not None and (reason := _answer(backend, "probe", probe, str, "")):
        return reason
    count = (one and one.count) or backend.count
    return "" if _answer(backend, "count", count, int) > 0 else "no device was found"


def _answer(
    backend: Backend,
    question: str,
    ask: Callable[[], object],
    kind: type[T],
    silence: T | None = None,
) -> T:
    """Answer of a backend, `silence` for None. Raises PluginError for another type."""
    answer = ask()
    if answer is None and silence is not None:
        return silence
    if not isinstance(answer, kind):
        raise PluginError(
            f"{question}() of {backend.name} returned {answer!r}, which is no {kind.__name__}"
        )
    return answer


def wanted_of_core(error: ImportError) -> str:
    """Message about names that a plugin imports but the core lacks; "" for other errors."""
    module = error.name or ""
    if module != CORE and not module.startswith(f"{CORE}."):
        return ""
    missing = "" if isinstance(error, ModuleNotFoundError) else f" ({error.msg.partition(' (')[0]})"
    ours = ".".join(map(str, API_VERSION))
    return (
        f"it was written for another tinycore: this one, with version {ours} of the plugin API, "
        f"has not what it imports of {module}{missing}. Upgrade the older one, e.g. "
        "`pip install --upgrade tinycore`"
    )


def told(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class Plugins:
    """All backends by name. Settings that allow or deny them are read at every query."""

    def __init__(self, entries: Iterable[EntryPoint] | None = None) -> None:
        self._given = None if entries is None else tuple(entries)
        self._lock = recursive_lock()
        self._claims: dict[str, list[Candidate]] | None = None
        self._registered: dict[str, Candidate] = {}

    @property
    def names(self) -> list[str]:
        """The names of all installed and registered backends, usable or not."""
        return sorted(self._all().keys() | self._registered.keys())

    @property
    def claims(self) -> list[Candidate]:
        """All backends by `find`, in the order of their names."""
        return [claim for name in self.names if (claim := self.find(name)) is not None]

    def register(self, backend: Backend) -> None:
        """Add a backend of this program; it precedes an installed one of the same name."""
        if objection := api_objection(backend.api):
            raise PluginError(f"{backend.name} {objection}")
        where = Candidate(backend.name, "", "this program", "", backend)
        self._registered[backend.name] = where

    def unregister(self, name: str) -> None:
        """Undo `register`."""
        self._registered.pop(name, None)

    def find(self, name: str) -> Candidate | None:
        """The backend with this name, or None; imports nothing.

        Where a setting leaves it out, or two packages claim the name, the state is BLOCKED.
        """
        if name in self._registered:
            return self._registered[name]
        claims = self._all().get(name)
        if claims is None:
            return None
        allowed = [claim for claim in claims if not blocked_by(claim)]
        if len(allowed) == 1:
            return allowed[0]
        first = claims[0]
        blocked = Candidate(name, first.reference, first.distribution, first.version)
        if not allowed:
            blocked.fail(State.BLOCKED, blocked_by(first))
        else:
            owners = " and ".join(claim.origin for claim in allowed)
            ways = " or ".join(f"TINYCORE_PLUGINS_DENY={c.distribution}" for c in allowed)
            reason = f"{owners} both claim the name. Uninstall one, or leave one out: {ways}"
            blocked.fail(State.BLOCKED, reason, PluginError(f"{name}: {reason}"))
        return blocked

    def check_all(self, interfaces: Mapping[str, str] = NONE_NAMED) -> list[Candidate]:
        """Every backend, imported and checked as far as settings allow, the preferred first.

        `interfaces` are those that the user named, by backend. With TINYCORE_STRICT, raises
        PluginError for those that are broken.
        """
        with self._lock:
            found = self.claims
            for claim in found:
                claim.check(interfaces.get(claim.name, ""))
        found.sort(key=lambda claim: (-claim.priority, claim.name))
        if settings.TINYCORE_STRICT:
            raise_for_broken(found)
        return found

    def settings(self) -> dict[str, PluginSettings | Exception]:
        """Settings of every backend that states some, by name, and the errors of broken ones."""
        found: dict[str, PluginSettings | Exception] = {}
        for claim in self.claims:
            claim.load()
            if claim.backend is None or claim.backend.settings is None:
                continue
            try:
                found[claim.name] = claim.backend.settings()
            except Exception as error:
                found[claim.name] = error
        return found

    def renderers(self, without: str = "") -> dict[str, Opener]:
        """Toolchains of every backend, by name.

        Of several with one name the preferred backend's is asked first, and the others where it
        does not compile for an architecture.
        """
        found: dict[str, list[Opener]] = {}
        claims = self.claims
        for claim in claims:
            claim.load()  # no driver is asked: compiling needs none
        for claim in sorted(claims, key=lambda claim: (-claim.priority, claim.name)):
            if claim.backend is not None and claim.name != without:
                for name, make in claim.backend.renderers.items():
                    found.setdefault(name, []).append(make)
        return {n: m[0] if len(m) == 1 else first_to_take(m) for n, m in found.items()}

    def loaded_owner_of_renderer(self, word: str) -> str:
        """The backend with a renderer of this name, of those imported so far; "" for none."""
        renderers = {c.name: c.backend.renderers for c in self.claims if c.backend}
        owners = [name for name, r in renderers.items() if isinstance(r, dict) and word in r]
        return owners[0] if owners else ""

    def _all(self) -> dict[str, list[Candidate]]:
        with self._lock:
            if self._claims is None:
                entries = entry_points(BACKEND_GROUP) if self._given is None else self._given
                claims: dict[str, list[Candidate]] = {}
                for entry in entries:
                    claims.setdefault(entry.name, []).append(
                        Candidate(entry.name, entry.reference, entry.distribution, entry.version)
                    )
                if self._given is None:
                    for name, reference in BUILT_IN.items():
                        claims.setdefault(name, [Candidate(name, reference, CORE, "")])
                self._claims = claims
            return self._claims


def blocked_by(claim: Candidate) -> str:
    """Why a setting leaves a backend out; "" when it does not."""
    names = {claim.name.lower(), claim.distribution}
    for word in settings.TINYCORE_PLUGINS_DENY:
        if word.lower() in names:
            return DENIED.format(word)
    allowed = settings.TINYCORE_PLUGINS
    # The core's own devices need no plugin.
    if claim.distribution == CORE or names.union({"auto"}).intersection(map(str.lower, allowed)):
        return ""
    return (
        f"TINYCORE_PLUGINS={','.join(allowed)} leaves it out; "
        f"add {claim.name} to it, or set it to auto, to use it"
    )


BROKEN: Final = frozenset({State.INCOMPATIBLE, State.IMPORT_FAILED})


def raise_for_broken(found: Iterable[Candidate]) -> None:
    """Raise PluginError if any backend is broken or claimed twice, for CI."""
    broken = [claim for claim in found if claim.state in BROKEN or claim.is_contested]
    if broken:
        lines = "\n".join(f"  {claim.name} ({claim.origin}): {claim.reason}" for claim in broken)
        raise PluginError(f"TINYCORE_STRICT is set, and plugins are broken:\n{lines}") from broken[
            0
        ].error


def first_to_take(
    makers: Sequence[Opener],
) -> Opener:
    """Makers of toolchains of one name as one: the first that takes an architecture."""

    def make(arch: str) -> Toolchain[Any]:
        refusals = []
        for each in makers:
            try:
                return each(arch)
            except CompilerUnavailable as error:
                refusals.append(str(error))
        raise CompilerUnavailable("; ".join(refusals))

    return make
