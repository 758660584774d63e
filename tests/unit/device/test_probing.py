"""The automatic choice asks plugins in another process, and remembers what they say."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from tinycore import Tensor
from tinycore.config import Context, settings
from tinycore.device import probing
from tinycore.device.backend import Backend
from tinycore.device.discovery import Candidate, EntryPoint, Plugins, _groups
from tinycore.device.probing import probe_isolated
from tinycore.device.registry import Device, Registry
from tinycore.errors import DeviceUnavailable, PluginError, SettingError, UnknownDevice

Install = Callable[..., EntryPoint]
Make = Callable[..., Registry]
Toy = Callable[..., Backend]

WORKING = """
from tinycore.plugin import Backend
from tinycore.builtin.null import NullRuntime
from tinycore.plugin import Toolchain

class Compiler:
    name = key = "C"
    def compile(self, source): return b""

BACKEND = Backend(
    name="{name}", api=(1, 7), open=NullRuntime, priority={priority},
    renderers={{"C": lambda arch: Toolchain("C", arch, None, Compiler())}}, {more}
)
"""


def working(name: str, priority: int = 100, more: str = "") -> str:
    return WORKING.format(name=name, priority=priority, more=more)


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the answers of other tests."""
    monkeypatch.setattr(settings, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(probing, "_memories", {})


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("module", "body", "said"),
    [
        ("bad_hang", "import time; time.sleep(600)", "nothing came of it in 5 s"),
        ("bad_crash", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("bad_end", "import os; os._exit(3)", "ended with status 3"),
        ("bad_exit", "import sys; sys.exit(3)", "raised SystemExit: 3"),
        ("bad_base", "class Stop(BaseException): pass\nraise Stop", "raised Stop"),
        ("bad_import", "1 / 0", "ZeroDivisionError"),
        ("bad_none", working("BAD", 300, "count=lambda: None"), "returned None, which is no int"),
        ("bad_text", working("BAD", 300, "count=lambda: '2'"), "returned '2', which is no int"),
        ("bad_probe", working("BAD", 300, "probe=lambda: 5"), "returned 5, which is no str"),
        (
            "bad_hidden",
            working("BAD", -1, "count=lambda: __import__('time').sleep(600)"),
            "nothing came of it in 5 s",
        ),
    ],
)
def test_a_bad_plugin_is_a_line_and_the_rest_is_used(
    install: Install,
    registry: Make,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    body: str,
    said: str,
) -> None:
    if "5 s" in said:
        monkeypatch.setattr(probing, "ANSWER_SECONDS", 5.0)
    good = install("GOOD", f"good_beside_{module}", working("GOOD"))
    devices = registry(install("BAD", module, body), good)

    with pytest.warns(UserWarning, match="tinycore leaves out") as told:
        assert devices.DEFAULT == "GOOD"
    lines = [str(warning.message) for warning in told]
    assert len(lines) == 1, lines
    assert f"BAD ({module.replace('_', '-')} 0.3.1)" in lines[0]
    assert said in lines[0]
    assert "denies" not in lines[0]
    assert module not in sys.modules


def test_the_choice_imports_the_chosen_plugin_only(install: Install, registry: Make) -> None:
    devices = registry(
        install("ONE", "chosen_one", working("ONE", 200)),
        install("TWO", "other_two", working("TWO", 100)),
    )

    assert devices.DEFAULT == "ONE"
    assert devices.get_available_devices() == ["ONE", "TWO"]
    assert "chosen_one" in sys.modules
    assert "other_two" not in sys.modules


def test_a_card_goes_before_the_processor_and_software_behind(
    install: Install, registry: Make
) -> None:
    devices = registry(
        install("PROCESSOR", "rank_processor", working("PROCESSOR", 100)),
        install("CARD", "rank_card", working("CARD", 50, "priority_here=lambda: 205")),
        install("SOFT", "rank_soft", working("SOFT", 300, "priority_here=lambda: 50")),
    )

    assert devices.get_available_devices() == ["CARD", "PROCESSOR", "SOFT"]
    assert devices.DEFAULT == "CARD"


def count_of_asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by an item whenever another process is started."""
    started: list[int] = []
    probe_isolated = probing.probe_isolated

    def counted(*arguments: object) -> list[probing.Answer]:
        started.append(1)
        return probe_isolated(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(probing, "probe_isolated", counted)
    return started


@pytest.mark.slow
def test_answers_are_remembered_until_the_driver_changes(
    install: Install, registry: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "libtoy.so"
    source = working("TOY", more=f"driver=lambda: [{str(library)!r}, '$TOY_SETTING']")
    entry = install("TOY", "toy_remembered", source)
    started = count_of_asked(monkeypatch)

    def choose() -> int:
        probing._memories.clear()  # as another process would
        assert registry(entry).get_available_devices() == ["TOY"]
        return len(started)

    assert choose() == 1
    assert choose() == 1
    library.write_text("a driver")
    assert choose() == 2
    monkeypatch.setenv("TOY_SETTING", "1")
    assert choose() == 3
    assert choose() == 3


SETTINGS = """
from tinycore.config import PluginSettings, text

class ToySettings(PluginSettings):
    TOY_PROBE_LIBRARY = text("", "The library of the toy", "a file")
"""


@pytest.mark.slow
def test_answers_are_remembered_by_the_variables_of_the_plugins_settings(
    install: Install, registry: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where a plugin does not state what its driver depends on."""
    source = SETTINGS + working("TOY", more="settings=lambda: ToySettings()")
    entry = install("TOY", "toy_variables", source)
    started = count_of_asked(monkeypatch)

    def choose() -> int:
        probing._memories.clear()  # as another process would
        assert registry(entry).get_available_devices() == ["TOY"]
        return len(started)

    assert choose() == 1
    assert choose() == 1
    monkeypatch.setenv("TOY_PROBE_LIBRARY", "/somewhere/else")
    assert choose() == 2
    monkeypatch.setenv("TOY_VISIBLE_DEVICES", "0")
    assert choose() == 3
    assert choose() == 3


def test_a_plugin_that_changed_is_asked_again(
    install: Install, registry: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = count_of_asked(monkeypatch)
    registry(install("TOY", "toy_changed", working("TOY"))).get_available_devices()
    registry(install("TOY", "toy_changed", working("TOY", 150))).get_available_devices()

    assert len(started) == 2


def test_what_a_driver_prints_is_not_shown(
    install: Install, registry: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    noise = "import os\nos.write(2, b'Warning: no display')\nos.write(1, b'{half')\n"
    devices = registry(
        install("LOUD", "loud_one", noise + working("LOUD", 50)),
        install("CALM", "calm_one", working("CALM")),
    )

    assert devices.DEFAULT == "CALM"
    assert devices.get_available_devices() == ["CALM", "LOUD"]
    assert capfd.readouterr() == ("", "")


def test_without_another_process_plugins_are_asked_here(
    install: Install, registry: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: object, **_options: object) -> None:
        raise PermissionError("no processes here")

    monkeypatch.setattr(subprocess, "Popen", refused)
    devices = registry(install("TOY", "toy_in_here", working("TOY")))

    assert devices.get_available_devices() == ["TOY"]


def test_an_array_of_the_host_asks_no_other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "get_available_devices", lambda: pytest.fail("asked"))

    with Context(DEV="PYTHON"):
        assert Tensor.from_dlpack(numpy.ones(3, numpy.float32)).tolist() == [1, 1, 1]


# Metadata


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"[tinycore.backends]\nno equals sign\n"])
def test_damaged_metadata_is_a_line_and_the_rest_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    folder = tmp_path / "damaged_toy-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_bytes(b"Metadata-Version: 2.1\nName: damaged-toy\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_bytes(damage)
    monkeypatch.syspath_prepend(tmp_path)
    _groups.cache_clear()
    try:
        with pytest.warns(UserWarning, match="damaged_toy-1.0.dist-info is damaged"):
            names = Plugins().names
    finally:
        _groups.cache_clear()

    assert {"NULL", "PYTHON"} <= set(names)


# Older names


@pytest.mark.parametrize("variable", ["METAL", "AMD_LLVM", "QCOM_IFACE"])
def test_an_older_name_of_a_device_that_is_not_installed(
    registry: Make, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    word = variable.partition("_")[0]

    with pytest.raises(UnknownDevice, match=rf"^{variable}=1: no backend named '{word}' is insta"):
        _ = registry().DEFAULT


@pytest.mark.parametrize(
    ("variable", "spelling"), [("GPU", "CL"), ("LLVM", "CPU:LLVM"), ("CLANG", "CPU:CLANG")]
)
def test_a_device_with_another_name_here_is_told(
    toy: Toy, registry: Make, monkeypatch: pytest.MonkeyPatch, variable: str, spelling: str
) -> None:
    devices = registry()
    devices.register(toy())
    monkeypatch.setenv(variable, "1")
    told = f"^{variable}=1 chooses no device here: set DEV={spelling}$"

    with pytest.warns(UserWarning, match=told):
        assert devices.DEFAULT == "TOY"
    monkeypatch.setenv(variable, "/usr/bin")
    devices.forget_choice()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert devices.DEFAULT == "TOY"
    with pytest.raises(UnknownDevice, match=f"Here it is {spelling}: DEV={spelling}"):
        devices[variable]


def test_an_interface_that_there_is_not_is_told_without_a_card(
    toy: Toy, registry: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = registry()
    devices.register(toy(interfaces=("KFD", "PCI"), count=lambda: 0))
    monkeypatch.setenv("TOY_IFACE", "FOO")

    with pytest.raises(SettingError, match="TOY has no interface FOO; it has KFD, PCI"):
        devices[devices.DEFAULT]


@pytest.mark.parametrize("variable", ["CUDA_LAUNCH_BLOCKING", "NV_DEBUG", "TEST"])
def test_variables_of_other_programs_choose_nothing(
    toy: Toy, registry: Make, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    devices = registry()
    devices.register(toy())

    assert devices.DEFAULT == "TOY"


# What is opened keeps to the protocol


class NoWrite:
    """An allocator that cannot be written to."""

    def alloc(self, size: int) -> object: ...
    def free(self, handle: object) -> None: ...
    def read(self, dst: memoryview, src: object) -> None: ...
    def offset(self, handle: object, size: int, start: int) -> object: ...


class Halfway:
    """A device with half an allocator."""

    allocator = NoWrite()

    def load(self, binary: bytes, info: object) -> None: ...
    def synchronize(self) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, r"TOY: open\(\) returned None, which lacks load\(\), synchronize\(\), close\(\)"),
        (Halfway(), r"TOY: its allocator a NoWrite lacks write\(\)"),
    ],
)
def test_what_open_returns_is_checked(toy: Toy, registry: Make, made: object, said: str) -> None:
    devices = registry()
    devices.register(toy(open=lambda index, interface: made))

    with pytest.raises(DeviceUnavailable, match=said) as raised:
        devices["TOY"]
    assert isinstance(raised.value.__cause__, PluginError)


def test_a_compiler_needs_its_key(toy: Toy, registry: Make, toy_runtime: type) -> None:
    from tinycore.plugin import Toolchain  # noqa: PLC0415

    class Keyless:
        name = "C"

        def compile(self, source: str) -> bytes:
            return b""

    devices = registry()
    compiler: object = Keyless()
    chain = Toolchain("C", "", None, compiler)  # type: ignore[arg-type]
    devices.register(toy(renderers={"C": lambda arch: chain}))

    with pytest.raises(PluginError, match="must have a text `key`, not None"):
        _ = devices["TOY"].toolchain


def test_a_program_must_be_callable(toy: Toy, registry: Make, toy_runtime: type) -> None:
    from tinycore.plugin import ProgramInfo  # noqa: PLC0415

    class Loads(toy_runtime):  # type: ignore[misc]  # made at run time
        def load(self, binary: bytes, info: ProgramInfo) -> None:
            return None

    devices = registry()
    devices.register(toy(open=Loads))

    with pytest.raises(PluginError, match=r"TOY: load\(\) returned None for sum"):
        devices["TOY"].load(b"", ProgramInfo("sum", 1))


def test_a_process_without_a_choice_starts_none() -> None:
    code = "import subprocess, tinycore\nsubprocess.Popen = None\nprint(tinycore.Device.DEFAULT)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"DEV": "PYTHON"},
    )

    assert (done.stdout, done.stderr) == ("PYTHON\n", "")


LINGERING = """
import threading, time
from tinycore.plugin import Backend

threading.Thread(target=time.sleep, args=(60,)).start()
BACKEND = Backend(name="TOY", api=(1, 0), open=print, renderers={"C": print}, count=lambda: 0)
"""


def test_a_plugin_whose_import_starts_a_thread_is_not_waited_for(install: Install) -> None:
    entry = install("TOY", "toy_lingering", LINGERING)
    claim = Candidate(entry.name, entry.reference, entry.distribution, entry.version)
    began = time.monotonic()

    (answer,) = probe_isolated([claim])

    assert answer.state == "no-hardware"
    assert time.monotonic() - began < probing.ANSWER_SECONDS / 2
