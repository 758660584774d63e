"""Observers: silence when there is none, calls by keyword, and mistakes that are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pluggy
import pytest

from tinycore import Tensor
from tinycore.config import Context
from tinycore.device.backend import Backend
from tinycore.device.discovery import EntryPoint
from tinycore.device.hooks import Hooks, hooks, specifications
from tinycore.device.registry import Registry
from tinycore.errors import PluginError

listen = pluggy.HookimplMarker("tinycore")


@pytest.fixture
def fresh() -> Hooks:
    """Hooks of a process in which no observer is installed."""
    return Hooks(entries=())


class Watcher:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    @listen
    def tinycore_backend_opened(self, device: str) -> None:
        self.seen.append(("opened", device))

    @listen
    def tinycore_backend_closing(self, device: str) -> None:
        self.seen.append(("closing", device))


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    watcher = Watcher()
    hooks.register(watcher)
    yield watcher
    hooks.unregister(watcher)


def test_nobody_listens(fresh: Hooks) -> None:
    assert fresh.active("tinycore_kernel_ran") is None


def test_an_observer_is_called_by_keyword(fresh: Hooks) -> None:
    watcher = Watcher()
    fresh.register(watcher)
    call = fresh.active("tinycore_backend_opened")
    assert call is not None
    call(device="TOY")

    assert watcher.seen == [("opened", "TOY")]
    assert fresh.active("tinycore_kernel_ran") is None


class Stopwatch:
    def __init__(self) -> None:
        self.ran: list[tuple[str, bool]] = []

    @listen
    def tinycore_kernel_ran(self, kernel: str, device: str, seconds: float | None) -> None:
        self.ran.append((device, seconds is not None))


def test_an_observer_is_told_of_each_launch_and_of_its_time_if_it_was_waited_for() -> None:
    stopwatch = Stopwatch()
    x = Tensor([1.0, 2.0], device="PYTHON").realize()
    hooks.register(stopwatch)
    try:
        (x + 1).realize()
        with Context(DEBUG=2):
            (x * 2).realize()
    finally:
        hooks.unregister(stopwatch)

    assert stopwatch.ran == [("PYTHON", False), ("PYTHON", True)]


def test_an_observer_can_leave(fresh: Hooks) -> None:
    watcher = Watcher()
    fresh.register(watcher)
    fresh.unregister(watcher)

    assert fresh.active("tinycore_backend_opened") is None


def test_devices_tell_when_they_open_and_close(
    watcher: Watcher, registry: Callable[..., Registry], toy: Callable[..., Backend]
) -> None:
    devices = registry()
    devices.register(toy())
    devices["TOY"]
    devices.close()

    assert watcher.seen == [("opened", "TOY"), ("closing", "TOY")]


@pytest.mark.parametrize(("selected", "default"), [("SLOW", "SLOW"), (None, "FAST")])
def test_an_observer_selects_the_device(
    registry: Callable[..., Registry],
    toy: Callable[..., Backend],
    selected: str | None,
    default: str,
) -> None:
    class Selector:
        @listen
        def tinycore_select_device(self, candidates: Sequence[str]) -> str | None:
            assert candidates == ("FAST", "SLOW")
            return selected

    devices = registry()
    devices.register(toy(name="FAST", priority=300))
    devices.register(toy(name="SLOW", priority=200))
    selector = Selector()
    hooks.register(selector)
    try:
        chosen = devices.DEFAULT
    finally:
        hooks.unregister(selector)
    assert chosen == default


def test_a_selection_out_of_nowhere_is_refused(
    registry: Callable[..., Registry], toy: Callable[..., Backend]
) -> None:
    class Selector:
        @listen
        def tinycore_select_device(self) -> str:
            return "MARS"

    devices = registry()
    devices.register(toy())
    selector = Selector()
    hooks.register(selector)
    try:
        with pytest.raises(
            PluginError, match="a tinycore_select_device hook chose 'MARS', none of"
        ):
            _ = devices.DEFAULT
    finally:
        hooks.unregister(selector)


# Mistakes


def test_a_misspelt_hook_is_found_when_asked(fresh: Hooks) -> None:
    class Misspelt:
        @listen
        def tinycore_kernel_run(self) -> None: ...

    fresh.register(Misspelt())

    with pytest.raises(PluginError, match=r"unknown hook 'tinycore_kernel_run'.*The hooks are"):
        fresh.check_pending()


def test_a_parameter_that_the_hook_lacks_is_found_at_once(fresh: Hooks) -> None:
    class Greedy:
        @listen
        def tinycore_kernel_ran(self, watts: float) -> None: ...

    with pytest.raises(PluginError, match=r"(?s)does not fit.*watts"):
        fresh.register(Greedy())
    assert fresh.active("tinycore_kernel_ran") is None


def test_the_same_observer_twice(fresh: Hooks) -> None:
    watcher = Watcher()
    fresh.register(watcher)

    with pytest.raises(PluginError, match="already registered"):
        fresh.register(watcher)


def test_a_hook_that_there_is_not(fresh: Hooks) -> None:
    with pytest.raises(PluginError, match=r"no hook is named 'tinycore_coffee'. The hooks are "):
        fresh.active("tinycore_coffee")


# Installed observers


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Hooks]:
    """Hooks of a process in which a package with this source is installed as an observer."""

    def make(source: str) -> Hooks:
        name = f"toy_observer_{len(source)}{source[1]}".strip()
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        entry = EntryPoint("watch", f"{name}:Watch", "tiny-watch", "1.0")
        return Hooks(entries=(entry,))

    return make


GOOD = """
import pluggy

class Watch:
    @staticmethod
    @pluggy.HookimplMarker("tinycore")
    def tinycore_kernel_ran(kernel): print("ran", kernel)
"""


def test_an_installed_observer_is_found(
    installed: Callable[[str], Hooks], capsys: pytest.CaptureFixture[str]
) -> None:
    call: Any = installed(GOOD).active("tinycore_kernel_ran")
    call(kernel="sum", device="TOY", seconds=None)

    assert capsys.readouterr().out == "ran sum\n"


def test_a_denied_observer_is_left_out(installed: Callable[[str], Hooks]) -> None:
    with Context(TINYCORE_PLUGINS_DENY="tiny-watch"):
        assert installed(GOOD).active("tinycore_kernel_ran") is None


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("class Stop(BaseException): pass\nraise Stop", "Stop"),
        ("import nosuchmodule", "ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("Watcher = None", "no attribute 'Watch'"),
    ],
)
def test_a_broken_observer_is_told_in_one_line_and_left_out(
    installed: Callable[[str], Hooks], source: str, why: str
) -> None:
    with pytest.warns(UserWarning, match="the observer watch of tiny-watch is left out: ") as told:
        assert installed(source).active("tinycore_kernel_ran") is None
    (warning,) = told
    assert why in str(warning.message)


MISSPELT = GOOD.replace("tinycore_kernel_ran", "tinycore_kernel_runs")


def test_a_misspelt_hook_is_told(installed: Callable[[str], Hooks]) -> None:
    with pytest.warns(UserWarning, match="implements tinycore_kernel_runs, which is no hook"):
        installed(MISSPELT).active("tinycore_kernel_ran")


GREEDY = GOOD.replace("(kernel)", "(kernel, watts)")


def test_a_hook_with_a_parameter_too_many_is_told_with_the_right_signature(
    installed: Callable[[str], Hooks],
) -> None:
    with pytest.warns(UserWarning, match="the observer watch of tiny-watch is left out") as told:
        assert installed(GREEDY).active("tinycore_kernel_ran") is None
    (warning,) = told
    assert "tinycore_kernel_ran takes watts, which the hook does not give" in str(warning.message)
    assert "tinycore_kernel_ran(kernel, device, seconds)" in str(warning.message)
    assert "\n" not in str(warning.message)


def test_a_broken_observer_raises_under_strict(installed: Callable[[str], Hooks]) -> None:
    with (
        Context(TINYCORE_STRICT=1),
        pytest.raises(PluginError, match="the observer watch of tiny-"),
    ):
        installed("10 / 0").active("tinycore_kernel_ran")


def test_the_hooks_that_there_are() -> None:
    assert set(specifications) == {
        "tinycore_backend_opened",
        "tinycore_backend_closing",
        "tinycore_select_device",
        "tinycore_kernel_compiled",
        "tinycore_kernel_ran",
        "tinycore_schedule_created",
        "tinycore_doctor_checks",
        "tinycore_report_header",
        "tinycore_rewrite_rules",
    }


def test_a_schedule_is_told_before_it_is_run() -> None:
    names: list[str] = []

    class Planner:
        @listen
        def tinycore_schedule_created(self, schedule: Sequence[Any]) -> None:
            names.extend(item.ast.op.name for item in schedule)

    planner = Planner()
    hooks.register(planner)
    try:
        (Tensor([1.0, 2.0], device="PYTHON") + 1).realize()
    finally:
        hooks.unregister(planner)

    assert names == ["SINK"]


def test_an_error_of_an_observer_names_it() -> None:
    class Broken:
        @listen
        def tinycore_backend_opened(self, device: str) -> None:
            raise ValueError("no such device")

    hooks = Hooks(())
    hooks.register(Broken(), "counter-of-devices")
    call = hooks.active("tinycore_backend_opened")
    assert call is not None

    with pytest.raises(ValueError, match="no such device") as raised:
        call(device="TOY")

    assert raised.value.__notes__ == [
        "raised by an observer's tinycore_backend_opened: counter-of-devices"
    ]
