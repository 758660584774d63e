"""Level 0: the declaration, what importing it does, and what is said when something is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

from tiny_testing.suite.case import Level, NotApplicable, case
from tiny_testing.suite.subject import Subject
from tinycore import Device, Tensor
from tinycore.device.backend import API_VERSION, Backend
from tinycore.device.discovery import obstacle_of
from tinycore.device.open_device import verify_abilities
from tinycore.device.presence import sight_of, sights_of
from tinycore.device.protocols import Toolchain
from tinycore.device.target import target_for
from tinycore.errors import (
    CompileError,
    CompilerUnavailable,
    DeviceUnavailable,
    SettingError,
    UnknownDevice,
)
from tinycore.render.base import Renderer

__all__ = [
    "IMPORT_SECONDS",
    "test_a_program_that_is_none_is_a_compile_error",
    "test_a_renderer_that_is_not_there_is_told",
    "test_a_toolchain_says_what_it_is",
    "test_an_index_without_a_device_is_told",
    "test_an_interface_that_is_not_there_is_told",
    "test_counting_opens_nothing",
    "test_each_interface_answers_for_itself",
    "test_import_opens_nothing",
    "test_import_takes_under_50_ms",
    "test_opening_finds_what_is_declared",
    "test_the_declaration_is_complete",
    "test_the_dtypes_that_every_program_needs",
    "verify_presence",
]

IMPORT_SECONDS: Final = 0.05
"""The longest that importing a plugin may take, the core being there already."""
ATTEMPTS: Final = 8
"""Most times that it is timed: the least counts, as other programs only add to it."""

IMPORTER: Final = """
import json, sys, threading, time
import tinycore.plugin
from tinycore._deferred import Deferred

def mapped():
    try:
        with open("/proc/self/maps") as lines:
            found = {line.split(maxsplit=5)[-1].strip() for line in lines if ".so" in line}
    except OSError:
        return set()
    modules = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {path for path in found if path not in modules and "/lib-dynload/" not in path}

def opened():
    import os
    try:
        links = {os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")}
        return {os.readlink(link) for link in links if os.path.islink(link)}
    except OSError:
        return set()

def delayed():
    try:
        with open("/proc/self/schedstat") as times:
            return int(times.read().split()[1]) / 1e9  # while others had the processor
    except (OSError, IndexError):
        return 0.0

before = mapped(), opened(), threading.active_count(), set(sys.modules)
loaded = []

def listen(event, given):
    if event == "ctypes.dlopen":
        loaded.append(str(given[0]))

sys.addaudithook(listen)
start = time.perf_counter() - delayed()
Deferred(sys.argv[1]).resolve()
seconds = time.perf_counter() - delayed() - start
print(json.dumps({
    "seconds": seconds,
    "libraries": sorted((mapped() - before[0]) | set(loaded)),
    "files": sorted(path for path in opened() - before[1] if path.startswith("/")),
    "threads": threading.active_count() - before[2],
    "heavy": sorted({"numpy", "cffi", "torch"} & (set(sys.modules) - before[3])),
}))
"""


def refusal(
    expected: type[Exception] | tuple[type[Exception], ...],
    ask: Callable[[], object],
    otherwise: str,
) -> Exception:
    """The exception that asking raises; fails, saying `otherwise`, where it raises none."""
    try:
        ask()
    except expected as error:
        return error
    names = expected.__name__ if isinstance(expected, type) else expected[0].__name__
    raise AssertionError(f"{otherwise}; {names} should be raised")


def made(make: Callable[[str], Toolchain[Any]]) -> Toolchain[Any] | CompilerUnavailable:
    """A toolchain for no architecture in particular, or why there is none."""
    try:
        return make("")
    except CompilerUnavailable as error:
        return error


def imported(subject: Subject) -> dict[str, Any]:
    """Effects of importing the plugin, in a process of its own."""
    reference = subject.candidate.reference
    if not reference:
        raise NotApplicable("the backend was registered by the program, so nothing is imported")
    done = subprocess.run(
        [sys.executable, "-c", IMPORTER, reference], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"importing {reference} fails:\n{done.stderr.strip()}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def verify_presence(backend: Backend, reference: str) -> None:
    """Compare the data in a package's `presence.toml` with what its backend says of itself.

    Raises PluginError for data that are missing or malformed.
    """
    sights = sights_of(reference, backend.name)
    ranks = {sight.priority for sight in sights}
    assert backend.priority in ranks, f"priority {backend.priority}, its presence.toml has {ranks}"
    one_rank = backend.priority_here is None
    assert not one_rank or len(ranks) == 1, f"without priority_here it cannot have ranks {ranks}"
    others = {p for sight in sights for p in sight.platforms} - {*backend.platforms}
    assert not backend.platforms or not others, f"platforms {others} are not among its own"


@case(Level.CONTRACT)
def test_the_declaration_is_complete(subject: Subject) -> None:
    """Name, version of the API, renderers, counts and callables are as the contract says."""
    backend = subject.backend
    assert backend.name == subject.target.device
    assert backend.api[0] == API_VERSION[0], f"api {backend.api}, the core has {API_VERSION}"
    assert backend.api <= API_VERSION, f"api {backend.api}, the core has {API_VERSION}"
    assert len(backend.renderers) > 0, "it has no renderers"
    count = backend.count()
    assert isinstance(count, int), f"count() is {count!r}, no integer"
    assert count >= 1, "count() says that there is no device, and one is tested"
    reason = backend.probe() if backend.probe else ""
    assert reason == "", f"probe() gives a reason not to use the device: {reason}"
    assert backend.platforms == () or sys.platform.startswith(backend.platforms)
    candidate = subject.candidate
    if candidate.is_plugin:
        verify_presence(backend, candidate.reference)
        obstacle = sight_of(candidate.reference, backend.name).obstacle
        is_named = backend.priority < 0  # and never chosen by itself
        assert is_named or not obstacle, f"the automatic choice does not see the device: {obstacle}"


@case(Level.CONTRACT)
def test_the_dtypes_that_every_program_needs(subject: Subject) -> None:
    """Masks, indices and numbers: bool, int32 and float32 are claimed."""
    missing = {"bool", "int32", "float32"} - subject.backend.capabilities
    assert not missing, f"{', '.join(sorted(missing))} must be claimed; no program does without"


@case(Level.CONTRACT)
def test_import_takes_under_50_ms(subject: Subject) -> None:
    """Importing the plugin is quick: what is heavy is deferred."""
    least = float("inf")
    for _ in range(ATTEMPTS):
        least = min(least, imported(subject)["seconds"])
        if least < IMPORT_SECONDS:
            return
    raise AssertionError(
        f"importing {subject.candidate.reference} takes {least * 1e3:.0f} ms, more than "
        f"{IMPORT_SECONDS * 1e3:.0f}: put what is heavy behind deferred()"
    )


@case(Level.CONTRACT)
def test_import_opens_nothing(subject: Subject) -> None:
    """Importing the plugin loads no library, opens no file, starts no thread."""
    found = imported(subject)
    assert not found["heavy"], f"it imports {', '.join(found['heavy'])}: put it behind deferred()"
    assert not found["libraries"], f"it loads {', '.join(found['libraries'])}"
    assert not found["files"], f"it opens {', '.join(found['files'])}"
    assert found["threads"] == 0, f"it starts {found['threads']} threads"


@case(Level.CONTRACT)
def test_counting_opens_nothing(subject: Subject) -> None:
    """`count` and `probe` can be asked again and again, and agree."""
    backend = subject.backend
    assert {backend.count() for _ in range(3)} == {backend.count()}
    interface = subject.device.interface
    assert {obstacle_of(backend, interface) for _ in range(3)} == {""}


@case(Level.CONTRACT)
def test_each_interface_answers_for_itself(subject: Subject) -> None:
    """Each interface says whether a device can be reached through it, the same when asked again."""
    backend, device = subject.backend, subject.device
    table = backend.interface_table
    if not table:
        raise NotApplicable("the backend has no interfaces")
    for name in table:
        reasons = {obstacle_of(backend, name) for _ in range(3)}
        assert len(reasons) == 1, f"{name} gives several answers: {sorted(reasons)}"
        (reason,) = reasons
        assert not reason or len(reason) > 10, f"{name} is not available, and says only {reason!r}"
    assert device.interface in table, f"{device.interface!r} is not among the interfaces declared"
    with subject.chosen():
        named = target_for(backend.name, Device.targets()).interface
    assert table[device.interface].automatic or named == device.interface, (
        f"it is open through {device.interface}, which must be named, and that is not"
    )


@case(Level.CONTRACT)
def test_opening_finds_what_is_declared(subject: Subject) -> None:
    """The open device has the methods of its capabilities, and one allocator."""
    verify_abilities(subject.backend, subject.runtime)
    assert subject.runtime.allocator is subject.runtime.allocator
    assert Device[subject.name] is Device[subject.name.lower()]
    subject.runtime.synchronize()


@case(Level.CONTRACT)
def test_a_toolchain_says_what_it_is(subject: Subject) -> None:
    """Each renderer makes a Toolchain with its name and a key, or says why it cannot."""
    for name, make in subject.backend.renderers.items():
        found = made(make)
        if isinstance(found, CompilerUnavailable):
            assert len(str(found)) > 20, f"{name} is unavailable, and says only {str(found)!r}"
            continue
        assert found.name == name, f"the toolchain of {name} calls itself {found.name}"
        assert isinstance(found.renderer, Renderer), f"{name}: {found.renderer!r} is no Renderer"
        assert found.compiler.key.strip(), f"{name}: the compiler's key is empty"
        assert found.compiler.name.strip(), f"{name}: the compiler has no name"


@case(Level.CONTRACT)
def test_a_program_that_is_none_is_a_compile_error(subject: Subject) -> None:
    """The compiler refuses nonsense by CompileError, with a log or at least a message."""
    source = "this is ]no[ program in any language {{{\n"
    compiler = subject.toolchain.compiler
    error = refusal(CompileError, lambda: compiler.compile(source), "nonsense compiles")
    assert len(str(error)) > 10, "the CompileError says nothing"


@case(Level.CONTRACT)
def test_a_renderer_that_is_not_there_is_told(subject: Subject) -> None:
    """A renderer's name that is wrong is answered with those that there are."""
    ask = subject.device.toolchain_for
    error = refusal(SettingError, lambda: ask("NOSUCH"), "the renderer NOSUCH was found")
    assert all(name in str(error) for name in subject.backend.renderers), str(error)


@case(Level.CONTRACT)
def test_an_interface_that_is_not_there_is_told(subject: Subject) -> None:
    """Opening through an interface that the backend does not have fails with a reason."""
    if not subject.backend.interfaces:
        raise NotApplicable("the backend has no interfaces")
    error = refusal(
        (DeviceUnavailable, SettingError),
        lambda: subject.backend.open(0, "NOSUCH"),
        f"it opens through NOSUCH, and declares {', '.join(subject.backend.interfaces)}",
    )
    assert len(str(error)) > 10, f"it says only {str(error)!r}"


@case(Level.CONTRACT)
def test_an_index_without_a_device_is_told(subject: Subject) -> None:
    """A device number beyond the last either works or raises DeviceUnavailable that names it."""
    beyond = f"{subject.target.device}:{subject.backend.count() + 97}"
    try:
        Tensor([1.0, 2.0], device=beyond).realize()
    except (DeviceUnavailable, UnknownDevice) as error:
        told = str(error)
    else:
        Device[beyond].synchronize()
        return
    assert beyond in told, f"the message does not name {beyond}: {told}"
