"""Locks that a forked child finds open, and that none is made in another way."""

from __future__ import annotations

import ast
import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import tinycore
from tinycore._locks import lock, recursive_lock, renew_properties

CORE = Path(tinycore.__file__).parent
PLUGINS = CORE.parent / "plugins"
SOURCES = [
    file
    for folder in (CORE, *PLUGINS.glob("*/src"))
    for file in sorted(folder.rglob("*.py"))
    if file != CORE / "_locks.py" and file.parent.name != "exported"
]
"""Without the files that `tinycore export` copies: they run where tinycore is not installed."""
BARE = frozenset({"Lock", "RLock", "Semaphore", "BoundedSemaphore", "allocate_lock"})
"""Locks of `threading` and `_thread` that a fork leaves held."""


def bare_locks(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of each lock that is not renewed at fork."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in ("threading", "_thread")
        for alias in node.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Attribute(ast.Name("threading" | "_thread"), name):
                pass
            case ast.Name(name) if name in imported:
                name = imported[name]
            case _:
                continue
        if name in BARE or (name == "Condition" and not node.args):
            yield node.lineno, name


@pytest.mark.parametrize(
    "source",
    [
        "import threading\nx = threading.Lock()",
        "import threading\nx = threading.RLock()",
        "import _thread\nx = _thread.allocate_lock()",
        "from threading import RLock as Kind\nx = Kind()",
        "import threading\nx = threading.Condition()",
    ],
)
def test_a_bare_lock_is_seen(source: str) -> None:
    assert [line for line, _ in bare_locks(source)] == [2]


def test_a_condition_over_a_lock_of_ours_and_a_type_are_none() -> None:
    source = "import threading\nx = threading.Condition(lock())\ny: threading.Lock = lock()"

    assert not list(bare_locks(source))


@pytest.mark.slow
def test_every_lock_of_core_and_plugins_is_renewed_at_fork() -> None:
    found = [
        f"{file.relative_to(CORE.parent)}:{line}: {name}"
        for file in SOURCES
        for line, name in bare_locks(file.read_text())
    ]

    assert not found, "use lock, recursive_lock of tinycore.plugin (in the core: tinycore._locks)"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("make", [lock, recursive_lock, lambda: threading.Condition(lock())])
def test_a_lock_that_another_thread_holds_is_open_in_a_forked_child(make: type) -> None:
    made, held, leave = make(), threading.Event(), threading.Event()

    def hold() -> None:
        with made:
            held.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    child = os.fork()
    if not child:
        os._exit(0 if made.acquire(blocking=False) else 1)
    _, status = os.waitpid(child, 0)
    leave.set()
    thread.join()

    assert os.waitstatus_to_exitcode(status) == 0


class Slow:
    """A class with a property that takes long to compute, in a module of tests of tinycore."""

    def __init__(self, began: threading.Event, end: threading.Event) -> None:
        self.began, self.end = began, end

    @cached_property
    def value(self) -> int:
        """Computed until it is told to end."""
        self.began.set()
        assert self.end.wait(60)
        return 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_reads_a_cached_property_that_another_thread_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before Python 3.12 all instances of a class share a lock, which fork leaves held."""
    monkeypatch.setattr(tinycore, "Slow", Slow, raising=False)  # where properties are looked for
    began, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=getattr, args=(Slow(began, end), "value"))
    thread.start()
    assert began.wait(60)
    if not (child := os.fork()):
        signal.alarm(20)  # a deadlock ends the child
        ready = threading.Event()
        ready.set()
        os._exit(Slow(ready, ready).value - 1)
    end.set()
    thread.join()
    assert os.waitpid(child, 0) == (child, 0)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="no lock in a cached property")
def test_properties_are_renewed_once_whatever_stands_for_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A module is imported by many, and sys.modules may have None or an object under a name."""
    renewed = []
    made = cached_property(lambda self: 1)
    vars(made)["lock"] = SimpleNamespace(_at_fork_reinit=lambda: renewed.append(made))
    kind = type("Kind", (), {"made": made})
    for name in ("tiny_one", "tiny_two"):
        module = ModuleType(name)
        module.kind = kind  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "tiny_absent", None)
    monkeypatch.setitem(sys.modules, "tiny_number", 5)

    renew_properties()

    assert renewed == [made]
