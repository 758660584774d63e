"""Hooks for observers, by pluggy; free of cost without observers.

Floor 1. Imports `config`, `errors` and `discovery`. An observer is a package with an entry
point in the group `tinycore.hooks`, or any object given to `hooks.register`; it marks its functions
with `pluggy.HookimplMarker("tinycore")`. pluggy itself is imported when the first observer is
there.

    report = hooks.active("tinycore_kernel_ran")
    if report:
        report(name=..., device=..., seconds=...)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from tinycore._deferred import Deferred
from tinycore._locks import recursive_lock
from tinycore.config import settings
from tinycore.device.discovery import EntryPoint, entry_points, offered, told
from tinycore.errors import PluginError

if TYPE_CHECKING:
    from pluggy import PluginManager

HOOK_GROUP: Final = "tinycore.hooks"
PROJECT: Final = "tinycore"

Caller = Callable[..., Any]
Specification = Callable[..., Any]
specifications: Final[dict[str, tuple[Specification, bool]]] = {}
"""Every hook by name: the function that specifies it, and whether the first result decides."""


def specification(function: Specification) -> Specification:
    """Make a function the specification of the hook it is named after."""
    specifications[function.__name__] = function, False
    return function


def first_result(function: Specification) -> Specification:
    """A `specification` that ends with the first observer that returns something but None."""
    specifications[function.__name__] = function, True
    return function


@specification
def tinycore_backend_opened(device: str) -> None:
    """The device is open: "CPU", "CPU:1"."""


@specification
def tinycore_backend_closing(device: str) -> None:
    """The device is about to be closed."""


@first_result
def tinycore_select_device(candidates: Sequence[str]) -> str | None:
    """The device to use if DEV names none, of those that are ready, best first; or None."""


@specification
def tinycore_kernel_compiled(
    kernel: str, target: str, source: str, binary: bytes, seconds: float, cached: bool
) -> None:
    """A kernel was compiled for "LLVM:x86_64,znver2", or found in the disk cache."""


@specification
def tinycore_kernel_ran(kernel: str, device: str, seconds: float | None) -> None:
    """A kernel was launched; `seconds` is known only where the launch was waited for (DEBUG=2)."""


@specification
def tinycore_schedule_created(schedule: Sequence[Any]) -> None:
    """Tensors are about to be computed: the launches and copies, each a ScheduleItem, in order."""


@specification
def tinycore_rewrite_rules(stage: str, target: str) -> Any:
    """A `RuleSet` for the kernels of a renderer and architecture ("LLVM:x86_64,znver2"), or None.

    `stage` is a pass of lowering, before which the rules run to their end: "expand", "gates",
    "group", "registers", "launch", "align", "images", "lower", "scalars", "tidy", "copies" or
    "stream". Those at "lower" come before the rules that replace what the renderer lacks. It is
    asked once per target. Rules depend on the node alone: what they make is kept in this process
    until an observer comes or goes, and not on disk.
    """


@specification
def tinycore_doctor_checks() -> Mapping[str, Callable[[str], str]] | None:
    """Checks for `tinycore doctor`, by name: each takes a device's name, and says what it did or
    raises."""


@specification
def tinycore_report_header() -> str | None:
    """A line for the head of reports that people paste: of `tinycore doctor`, and of the suite."""


class Hooks:
    """The observers of this process. `hooks` is the one instance that tinycore calls."""

    def __init__(self, entries: Iterable[EntryPoint] | None = None) -> None:
        self._given = entries
        self._lock = recursive_lock()
        self._manager: PluginManager | None = None
        self._scanned = False
        self._active: dict[str, Caller | None] = {}
        self.generation = 0
        """Incremented whenever an observer is added or removed."""

    def active(self, name: str) -> Caller | None:
        """The hook to call, by keywords only, or None without observers."""
        try:
            return self._active[name]
        except KeyError:
            return self._find(name)

    def register(self, observer: object, name: str | None = None) -> None:
        """Let an object with hook implementations listen. Raises PluginError if it does not fit."""
        with self._lock:
            manager = self._manager or self._start()
            try:
                manager.register(observer, name)
            except ValueError as error:  # registered already
                raise PluginError(str(error)) from error
            except Exception as error:
                if manager.is_registered(observer):
                    manager.unregister(observer)
                why = "; ".join(misfits(observer)) or str(error)
                raise PluginError(
                    f"the observer {name or observer!r} does not fit: {why}"
                ) from error
            self._changed()

    def unregister(self, observer: object) -> None:
        """Stop an object from listening."""
        with self._lock:
            if self._manager is not None and self._manager.is_registered(observer):
                self._manager.unregister(observer)
            self._changed()

    def check_pending(self) -> None:
        """Raise PluginError for hook implementations that no specification knows, as a misspelt
        one.
        """
        with self._lock:
            self._scan()
            if self._manager is None:
                return
            try:
                self._manager.check_pending()
            except Exception as error:
                known = ", ".join(specifications)
                raise PluginError(f"{error}. The hooks are {known}.") from error

    def _find(self, name: str) -> Caller | None:
        if name not in specifications:
            raise PluginError(
                f"no hook is named {name!r}. The hooks are {', '.join(specifications)}."
            )
        with self._lock:
            self._scan()
            caller: Any = getattr(self._manager.hook, name) if self._manager is not None else None
            listens = caller is not None and bool(caller.get_hookimpls())
            self._active[name] = named_caller(name, caller) if listens else None
            return self._active[name]

    def _changed(self) -> None:
        self._active.clear()
        self.generation += 1

    def _start(self) -> PluginManager:
        import pluggy  # noqa: PLC0415  12 ms that only an observer should cost

        manager = pluggy.PluginManager(PROJECT)
        mark = pluggy.HookspecMarker(PROJECT)

        class Specifications:
            """The hooks, as pluggy reads them."""

        for name, (function, first) in specifications.items():
            setattr(Specifications, name, staticmethod(mark(function, firstresult=first)))
        manager.add_hookspecs(Specifications)
        self._manager = manager
        return manager

    def _scan(self) -> None:
        """Register the installed observers, once. A broken one is reported and left out."""
        if self._scanned:
            return
        self._scanned = True
        if settings.VIZ:
            offered("tinycore.viz", "profile", "viz")
        for entry in entry_points(HOOK_GROUP) if self._given is None else self._given:
            if entry.distribution in settings.TINYCORE_PLUGINS_DENY:
                continue
            try:
                if (observer := Deferred(entry.reference).resolve()) is None:
                    continue  # it has nothing to observe in this process
                self.register(observer, entry.name)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # sys.exit too: an observer ends no program
                self._tell(
                    f"{entry.name} of {entry.distribution} is left out: {told(error)}", error
                )
                continue
            if misspelt := [name for name in marked_hooks(observer) if name not in specifications]:
                self._tell(
                    f"{entry.name} of {entry.distribution} implements {', '.join(misspelt)}, "
                    f"which is no hook. The hooks are {', '.join(specifications)}."
                )

    def _tell(self, message: str, error: BaseException | None = None) -> None:
        """Report the error of an observer. Raises PluginError with TINYCORE_STRICT."""
        message = f"the observer {message}"
        if settings.TINYCORE_STRICT:
            raise PluginError(message) from error
        warnings.warn(message, stacklevel=2)


def named_caller(name: str, caller: Any) -> Caller:
    """A hook whose errors say which observers have it."""

    def call(**given: Any) -> Any:
        try:
            return caller(**given)
        except Exception as error:
            owners = " or ".join(sorted(each.plugin_name for each in caller.get_hookimpls()))
            error.add_note(f"raised by an observer's {name}: {owners}")
            raise

    return call


def marked_hooks(observer: object) -> list[str]:
    """The functions that an observer marks as hooks of ours."""
    mark = f"{PROJECT}_impl"
    return [name for name in dir(observer) if hasattr(getattr(observer, name, None), mark)]


def misfits(observer: object) -> Iterator[str]:
    """Errors in an observer: parameters that its hooks do not give, with the right signatures."""
    for name in marked_hooks(observer):
        if name not in specifications:
            continue
        given = signature(specifications[name][0]).parameters
        taken = signature(getattr(observer, name)).parameters
        if extra := [word for word in taken if word not in given and word != "self"]:
            yield (
                f"{name} takes {', '.join(extra)}, which the hook does not give; it is "
                f"{name}({', '.join(given)}), of which a function takes what it needs"
            )


hooks: Final = Hooks()
