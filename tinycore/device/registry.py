"""`Device`: the devices by name, the default device, and reasons of unavailability.

Floor 1. The top of the device floor: imports `presence`, `discovery`, `target`, `open_device` and
`hooks`. A choice that a user made (DEV, or a name in code) is obeyed or fails. The automatic choice
takes the first that works of the devices whose declared presence is seen: the one that the hook
`tinycore_select_device` selects, then the one of highest priority. It imports the plugin that it
tries, no other, and starts no process; with DEBUG=1 it says what it took and why not the others.
See docs/floors/device.md.
"""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Final, NoReturn

from tinycore._locks import recursive_lock
from tinycore._signals import silence
from tinycore._tracebacks import shown_at_caller
from tinycore.config import in_force, settings
from tinycore.device.backend import Backend
from tinycore.device.discovery import BROKEN, Candidate, DeviceState, Plugins, State, extras
from tinycore.device.hooks import hooks
from tinycore.device.open_device import OpenDevice, at_close, open_device, reason_of
from tinycore.device.presence import sight_of
from tinycore.device.target import (
    Target,
    absent_older_spelling,
    default_of,
    device_and_index,
    ignored_older_spellings,
    older_details,
    older_spellings,
    parse_targets,
    renamed_devices,
    target_for,
)
from tinycore.errors import (
    CompilerUnavailable,
    DeviceUnavailable,
    PluginError,
    TinycoreError,
    UnknownDevice,
)
from tinycore.trace import Trace

__all__ = ["Device", "OpenDevice", "Registry", "at_close"]

Targets = tuple[Target, ...]

trace: Final = Trace("device")

USABLE: Final = frozenset({State.READY, State.OPEN})
PROCESSORS: Final = 100
"""Priority of processors: a device below it may be slower, which the user is told."""


class Registry:
    """Every device. `Device` is the one instance that tinycore uses."""

    def __init__(self, plugins: Plugins | None = None) -> None:
        self.plugins = plugins or Plugins()
        self._lock = recursive_lock()
        self._open: dict[str, OpenDevice] = {}
        self._spellings: dict[str, str] = {}
        self._automatic: str | None = None
        self._older: Targets | None = None
        self._wanted: dict[str, Targets] = {}
        self._closes_at_exit = False

    # --- names

    @property
    def DEFAULT(self) -> str:  # noqa: N802  the name tinygrad's users know
        """The device of tensors that name none: the first of DEV, else the best that works."""
        if text := in_force()["DEV"]:
            return default_of(text)
        if self._automatic is not None and self._older == ():
            return self._automatic
        targets = self.targets()
        return targets[0].name if targets else self._chosen_automatically()

    @DEFAULT.setter
    def DEFAULT(self, text: str) -> None:  # noqa: N802
        parse_targets(text)
        settings.DEV = text

    def targets(self) -> Targets:
        """The devices that the user chose, by DEV, or by older spellings where DEV is empty."""
        text = in_force()["DEV"]
        if text:
            found = self._wanted.get(text)
            if found is None:
                found = self._wanted[text] = self._completed(parse_targets(text))
            return found
        if self._older is None:
            self._older = self._older_targets()
        return self._older

    def _completed(self, targets: Targets) -> Targets:
        """The targets of DEV, completed by NAME_IFACE and NAME_RENDERER where DEV is silent."""
        details = {one.device: one for one in older_details(self.plugins.names, self._is_renderer)}
        completed = [target.completed_by(details.pop(target.device, target)) for target in targets]
        return (*completed, *details.values())

    def _named_interfaces(self) -> dict[str, str]:
        """The interface that the user named for a backend, by the backend's name."""
        try:
            targets = self.targets()
        except TinycoreError:  # told where a device is asked for
            return {}
        return {target.device: target.interface for target in targets if target.interface}

    def _older_targets(self) -> Targets:
        """Targets by older spellings. Raises UnknownDevice for one that is not installed."""
        for ignored, spelling in ignored_older_spellings().items():
            warnings.warn(
                f"{ignored}=1 chooses no device here: set DEV={spelling}",
                stacklevel=frames_of_ours(),
            )
        found = older_spellings(self.plugins.names, self._is_renderer)
        variable, device = ("", "") if found else absent_older_spelling(self.plugins.names)
        if variable:
            raise UnknownDevice(
                f"{variable}={os.environ[variable]}: {self._unknown(device)} Unset it if it is "
                "another program's."
            )
        return found

    def canonicalize(self, name: str | None) -> str:
        """The one spelling of a device's name: "cpu:0" is "CPU", None the default.

        Raises UnknownDevice when no backend of that name is installed; whether it can be used is
        found out when it is. Raises SettingError for what is no device name at all.
        """
        if name is None:
            return self.DEFAULT
        found = self._spellings.get(name)
        if found is None:
            device, index = device_and_index(name)
            if self.plugins.find(device) is None:
                raise UnknownDevice(self._unknown(device))
            found = self._spellings[name] = f"{device}:{index}" if index else device
        return found

    # --- devices

    def __getitem__(self, name: str) -> OpenDevice:
        """The device with this name, opened at the first use.

        Raises UnknownDevice when no backend has the name, DeviceUnavailable with state, reason and
        fix when it has one that cannot be used. Never another device instead.
        """
        found = self._open.get(name)
        return found if found is not None else self._opened(name)

    def get_available_devices(self) -> list[str]:
        """The names of all backends that can be used, the preferred first. Opens nothing; imports
        the plugins whose devices are seen, and asks them.
        """
        with self._lock:
            return [claim.name for claim in self._ready()]

    def candidates(self) -> list[str]:
        """The devices that the automatic choice tries, in its order; none where DEV names one.
        Opens nothing; imports the plugins whose devices are seen.
        """
        with self._lock:
            ready = [] if self.targets() else self._ready()
            names = [claim.name for claim in ready if claim.priority >= 0]
            selected = self._selected(names)
            return sorted(names, key=lambda name: name != selected)

    def states(self) -> list[DeviceState]:
        """The states of all installed backends, the preferred first. Opens nothing."""
        with self._lock:
            return [
                DeviceState(
                    c.name,
                    c.state,
                    c.reason or unseen(c),
                    c.distribution,
                    c.version,
                    c.error,
                    c.interface_states(),
                )
                for c in self.plugins.check_all(self._named_interfaces())
            ]

    def opened(self) -> list[OpenDevice]:
        """The devices that are open."""
        return list(self._open.values())

    def backend(self, name: str) -> Backend:
        """The declaration of the backend with this name. Raises as `Device[name]` does; opens
        nothing.
        """
        return self._usable(device_and_index(name)[0])

    def register(self, backend: Backend) -> None:
        """Add a backend from this program: for tests, notebooks and frozen apps.

        It goes before an installed one of the same name. Raises PluginError while a device of that
        name is open, or when it needs another version of the API.
        """
        with self._lock:
            self._refuse_open(backend.name)
            self.plugins.register(backend)
            self.forget_choice()

    def unregister(self, name: str) -> None:
        """Undo `register`, closing its devices."""
        with self._lock:
            self.close(name)
            self.plugins.unregister(name)
            self.forget_choice()

    def forget_choice(self) -> None:
        """Choose the default device again at its next use: plugins or the environment changed."""
        self._automatic = self._older = None
        self._wanted.clear()
        self._spellings.clear()

    def close(self, name: str | None = None) -> None:
        """Close the devices of one backend, or all.

        Their memory is lost: tensors that had some, and functions that were captured there, raise
        DeviceError when they are used.
        """
        with self._lock:
            for key, device in list(self._open.items()):
                if name is None or device.backend.name == name:
                    del self._open[key]
                    device.close()
                    claim = self.plugins.find(device.backend.name)
                    if claim is not None and claim.state is State.OPEN:
                        claim.state = State.READY

    def _close_at_exit(self) -> None:
        """Close all devices; a signal handler would find the memory of tensors lost."""
        silence()
        self.close()

    # --- how

    @shown_at_caller
    def _opened(self, name: str) -> OpenDevice:
        name = self.canonicalize(name)
        with self._lock:
            if name in self._open:
                return self._open[name]
            word, index = device_and_index(name)
            backend = self._usable(word)
            asked = target_for(word, self.targets())
            target = Target(word, index, asked.renderer, asked.arch, asked.interface, asked.visible)
            claim = self.plugins.find(word)
            assert claim is not None
            try:
                device = open_device(target, backend, self.targets)
            except DeviceUnavailable as error:
                if claim.state is not State.OPEN:
                    claim.fail(State.NO_HARDWARE, str(error), error)
                raise
            self._note(claim, device)
        if opened := hooks.active("tinycore_backend_opened"):
            opened(device=name)
        return device

    def _note(self, claim: Candidate, device: OpenDevice) -> None:
        self._open[device.name] = device
        claim.state, claim.reason, claim.error = State.OPEN, "", None
        if not self._closes_at_exit:
            self._closes_at_exit = True
            atexit.register(self._close_at_exit)

    def _usable(self, word: str) -> Backend:
        """The declaration behind a name, checked; raises when it cannot be used."""
        with self._lock:
            claim = self.plugins.find(word)
            if claim is None:
                raise UnknownDevice(self._unknown(word))
            if claim.state is State.NO_HARDWARE:  # things change: a driver was loaded since
                claim.state = State.FOUND
            claim.check(target_for(word, self.targets()).interface)
            if claim.backend is None or claim.state not in (State.READY, State.OPEN):
                self._refuse(claim)
            return claim.backend

    def _refuse(self, claim: Candidate) -> NoReturn:
        text = f"{claim.name} ({claim.origin}) is {claim.state.value}: {claim.reason}"
        if isinstance(claim.error, PluginError) and claim.state is State.BLOCKED:
            raise PluginError(text)
        raise DeviceUnavailable(text) from claim.error

    def _unknown(self, word: str) -> str:
        installed = ", ".join(self.plugins.names) or "none"
        text = f"no backend named {word!r} is installed. Installed: {installed}."
        owner = self.plugins.loaded_owner_of_renderer(word)
        if owner:
            return f"{text} {word} is a renderer of {owner}: DEV={owner}:{word}."
        if word in renamed_devices():
            return f"{text} Here it is {renamed_devices()[word]}: DEV={renamed_devices()[word]}."
        known = extras()
        if known is None or word.lower() in known:
            return f'{text} Install it with `pip install "tinycore[{word.lower()}]"`, or set DEV.'
        return (
            f"{text} No extra of tinycore brings one of that name; a package that does declares it "
            "in the entry-point group tinycore.backends. Install one, or set DEV to what is there."
        )

    def _is_renderer(self, device: str, word: str) -> bool:
        claim = self.plugins.find(device)
        backend = claim.load() if claim is not None else None
        return backend is not None and word in backend.renderers

    def _refuse_open(self, name: str) -> None:
        if any(device.backend.name == name for device in self._open.values()):
            raise PluginError(
                f"{name} is open; close it before registering another: Device.close({name!r})"
            )

    # --- the automatic choice

    def _chosen_automatically(self) -> str:
        if self._automatic is None:
            with self._lock:
                if self._automatic is None:
                    self._automatic = self._choose()
        return self._automatic

    def _choose(self) -> str:
        if settings.TINYCORE_STRICT:
            self.plugins.check_all()  # raises for what is broken
        skipped: list[str] = []
        ranks = {n: rank for n, rank in self._seen(skipped).items() if rank >= 0}
        selected = self._selected(in_order(ranks))
        while ranks:
            name = selected if selected in ranks else in_order(ranks)[0]
            del ranks[name]
            rank = self._rank_once_asked(name, skipped)
            if rank is None or rank < 0:
                continue
            if name != selected and any(other > rank for other in ranks.values()):
                ranks[name] = rank  # a driver in software, where a card was to be expected
            elif self._serves(name, skipped):
                self._tell(name, skipped)
                return name
        raise DeviceUnavailable(
            "no device can be used: " + ("; ".join(skipped) or "none is installed")
        )

    def _rank_once_asked(self, name: str, skipped: list[str]) -> int | None:
        """The priority of what a plugin finds, which is imported for it; None for nothing."""
        claim = self.plugins.find(name)
        assert claim is not None
        claim.check()
        if claim.state in USABLE:
            return claim.priority
        skipped.append(f"{name} ({claim.state.value}: {claim.reason})")
        if claim.state in BROKEN:
            self._leave_out(claim, f"is {claim.state.value}: {claim.reason}")
        return None

    def _serves(self, name: str, skipped: list[str]) -> bool:
        """True if a device opens, and something compiles for it."""
        try:
            self._opened(name).toolchain  # noqa: B018  a device without a compiler is no use
        except (DeviceUnavailable, CompilerUnavailable) as error:
            skipped.append(f"{name} ({reason_of(error)})")
        except PluginError as error:
            self._give_up_on(name, error)
            skipped.append(f"{name} (incompatible: {error})")
        else:
            return True
        return False

    def _give_up_on(self, name: str, error: PluginError) -> None:
        """Leave out a plugin that turned out broken. Raises the error with TINYCORE_STRICT."""
        if settings.TINYCORE_STRICT:
            raise error
        claim = self.plugins.find(name)
        assert claim is not None
        self.close(name)
        claim.fail(State.INCOMPATIBLE, str(error), error)
        self._leave_out(claim, f"is {claim.state.value}: {error}")

    def _leave_out(self, claim: Candidate, why: str) -> None:
        """A line about a plugin that is at fault; missing hardware is no fault."""
        warnings.warn(
            f"tinycore leaves out {claim.name} ({claim.origin}), which {why}",
            stacklevel=frames_of_ours(),
        )

    def _seen(self, skipped: list[str]) -> dict[str, int]:
        """The priorities of the backends whose devices show, by name. Imports no plugin: the rank
        of each is that of the way in which it shows. The others go to `skipped`.
        """
        found: dict[str, int] = {}
        named = self._named_interfaces()
        for claim in self.plugins.claims:
            if claim.state is State.BLOCKED:
                skipped.append(f"{claim.name} (blocked: {claim.reason})")
                if claim.is_contested:
                    self._leave_out(claim, f"is blocked: {claim.reason}")
            elif not claim.is_plugin or claim.name in named:
                claim.load()
                found[claim.name] = claim.priority
            else:
                try:
                    sight = sight_of(claim.reference, claim.name)
                except PluginError as error:
                    self._leave_out(claim, f"cannot be chosen automatically: {error}")
                    continue
                if sight.obstacle:
                    skipped.append(f"{claim.name} (not seen: {sight.obstacle})")
                else:
                    found[claim.name] = sight.priority
        return found

    def _ready(self) -> list[Candidate]:
        """The backends whose devices show and can be used, the preferred first."""
        if settings.TINYCORE_STRICT:
            self.plugins.check_all()
        interfaces, ready = self._named_interfaces(), []
        for name in self._seen([]):
            claim = self.plugins.find(name)
            if claim is not None:
                claim.check(interfaces.get(name, ""))
                ready += [claim] if claim.state in USABLE else []
        return sorted(ready, key=lambda claim: (-claim.priority, claim.name))

    def _selected(self, names: list[str]) -> str:
        """The candidate that a hook selects; "" where none does."""
        select = hooks.active("tinycore_select_device")
        selected = select(candidates=tuple(names)) if select else None
        if selected is not None and selected not in names:
            raise PluginError(
                f"a tinycore_select_device hook chose {selected!r}, none of {', '.join(names)}"
            )
        return selected or ""

    def _tell(self, name: str, skipped: list[str]) -> None:
        for reason in skipped:
            trace(f"skipped {reason}")
        trace(f"{name} is the default; set DEV to choose another")
        claim = self.plugins.find(name)
        if claim is not None and claim.priority < PROCESSORS:
            names = ", ".join(text.partition(" (")[0] for text in skipped)
            others = f" Not ready: {names}; `tinycore devices` says why." if names else ""
            warnings.warn(
                f"tinycore computes on {name}, which may be slower than the processor: nothing "
                f'that ranks higher is ready.{others} `pip install "tinycore[cpu]"` helps; '
                f"DEV={name} stays with it.",
                stacklevel=frames_of_ours(),
            )


def unseen(claim: Candidate) -> str:
    """Why the automatic choice passes over a device that can be used; "" where it does not."""
    if claim.state is not State.READY or not claim.is_plugin:
        return ""
    try:
        obstacle = sight_of(claim.reference, claim.name).obstacle
    except PluginError as error:
        obstacle = str(error)
    return obstacle and f"not seen by the automatic choice: {obstacle}; DEV={claim.name} uses it"


def in_order(ranks: Mapping[str, int]) -> list[str]:
    """Names by falling rank."""
    return sorted(ranks, key=lambda name: (-ranks[name], name))


def frames_of_ours() -> int:
    """Stack level of the program that called, for `warnings.warn` of the caller."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("tinycore."):
        frame, level = frame.f_back, level + 1
    return level


Device: Final = Registry()
