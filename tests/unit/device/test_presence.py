"""The automatic choice sees devices by the data of their packages, and imports the one it takes."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from tiny_testing.suite.contract import verify_presence
from tinycore import Tensor
from tinycore.config import Context
from tinycore.device import presence
from tinycore.device.backend import API_VERSION, Backend
from tinycore.device.discovery import Candidate, EntryPoint, Plugins, _groups
from tinycore.device.presence import Sight, sight_of
from tinycore.device.registry import Device, Registry
from tinycore.errors import DeviceUnavailable, PluginError, SettingError, UnknownDevice

Install = Callable[..., EntryPoint]
Make = Callable[..., Registry]
Toy = Callable[..., Backend]

OURS = ".".join(map(str, API_VERSION))
WORKING = """
from tinycore.plugin import Backend
from tinycore.builtin.null import NullRuntime
from tinycore.plugin import Toolchain

class Compiler:
    name = key = "C"
    def compile(self, source): return b""

BACKEND = Backend(
    name="{name}", api=(2, 0), open=NullRuntime, priority={priority},
    renderers={{"C": lambda arch: Toolchain("C", arch, None, Compiler())}}, {more}
)
"""


def working(name: str, priority: int = 100, more: str = "") -> str:
    return WORKING.format(name=name, priority=priority, more=more)


def shows(name: str, *rows: str) -> str:
    """Data of a package: a table for each way in which a device shows."""
    return "".join(f"[[{name}]]\n{row}\n" for row in rows)


PLUGINS = [claim for claim in Plugins().claims if claim.is_plugin]


@pytest.mark.parametrize("claim", PLUGINS, ids=lambda claim: claim.name)
def test_packages_declare_what_their_backends_say(claim: Candidate) -> None:
    backend = claim.load()

    assert backend is not None
    verify_presence(backend, claim.reference)


CHOICE = """
import sys
starts = {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.system", "os.exec", "os.forkpty"}
before = set(sys.modules)
started = []
sys.addaudithook(lambda event, facts: started.append(str(facts)) if event in starts else None)
import tinycore
tinycore.Tensor([1])
names = {entry.reference.partition(":")[0] for entry in tinycore.device.discovery.entry_points(
    "tinycore.backends")}
print(tinycore.Device.DEFAULT, *sorted(names & set(sys.modules) - before))
print(*started)
"""


@pytest.mark.slow
@pytest.mark.skipif("CPU" not in Plugins().names, reason="no plugin is installed")
def test_the_first_tensor_imports_one_plugin_and_starts_no_process(tmp_path: Path) -> None:
    """With all plugins installed. With an empty cache the device may ask its compiler what it is,
    and does not ask again; no Python is started to choose it.
    """
    variables = {name: value for name, value in os.environ.items() if name != "DEV"}
    for time in ("first", "second"):
        done = subprocess.run(
            [sys.executable, "-c", CHOICE],
            capture_output=True, text=True, check=True,
            env=variables | {"CACHE_DIR": str(tmp_path)},
        )  # fmt: skip

        chosen, started = done.stdout.splitlines()
        device, *imported = chosen.split()
        claim = Plugins().find(device)
        assert claim is not None
        plugins = [name for name in imported if not name.startswith("tinycore.")]
        assert plugins == [claim.reference.partition(":")[0]]
        assert "python" not in started
        assert started == "" or time == "first"


def test_the_choice_imports_the_chosen_plugin_only(install: Install, registry: Make) -> None:
    devices = registry(
        install("ONE", "chosen_one", working("ONE", 200), presence=shows("ONE", "priority = 200")),
        install("TWO", "other_two", working("TWO", 100), presence=shows("TWO", "priority = 100")),
        install("BAD", "other_bad", "import os; os._exit(3)"),
    )

    assert devices.DEFAULT == "ONE"
    assert "chosen_one" in sys.modules
    assert "other_two" not in sys.modules


def test_a_card_goes_before_the_processor_and_software_behind(
    install: Install, registry: Make
) -> None:
    """The rank of what a plugin finds counts, where its data promised more."""
    devices = registry(
        install("PROCESSOR", "rank_processor", working("PROCESSOR", 100), priority=100),
        install("CARD", "rank_card", working("CARD", 50, "priority_here=lambda: 50"),
                presence=shows("CARD", "priority = 205\nfiles = ['/nowhere']", "priority = 50")),
        install("SOFT", "rank_soft", working("SOFT", 300, "priority_here=lambda: 60"),
                priority=300),
        install("GONE", "rank_gone", working("GONE", 400, "count=lambda: 0"), priority=400),
    )  # fmt: skip

    assert devices.DEFAULT == "PROCESSOR"
    assert "rank_soft" in sys.modules
    assert "rank_card" not in sys.modules
    assert devices.get_available_devices() == ["PROCESSOR", "SOFT", "CARD"]


def test_the_next_is_taken_where_software_is_found_and_nothing_ranks_between(
    install: Install, registry: Make
) -> None:
    devices = registry(
        install("SOFT", "last_soft", working("SOFT", 50, "priority_here=lambda: 50"), priority=205),
        install("LESS", "last_less", working("LESS", 40), priority=40),
    )

    with pytest.warns(UserWarning, match="tinycore computes on SOFT, which may be slower"):
        assert devices.DEFAULT == "SOFT"
    assert "last_less" not in sys.modules


@pytest.mark.parametrize(
    ("module", "body", "said"),
    [
        ("bad_exit", "import sys; sys.exit(3)", "raised SystemExit: 3"),
        ("bad_base", "class Stop(BaseException): pass\nraise Stop", "raised Stop"),
        ("bad_import", "1 / 0", "ZeroDivisionError"),
        ("bad_none", working("BAD", 300, "count=lambda: None"), "returned None, which is no int"),
        ("bad_text", working("BAD", 300, "count=lambda: '2'"), "returned '2', which is no int"),
        ("bad_probe", working("BAD", 300, "probe=lambda: 5"), "returned 5, which is no str"),
        (
            "bad_field",
            working("BAD", 300, "driver=lambda: []"),
            f"BAD states driver, which version {OURS} of the plugin API has not: leave it out",
        ),
        (
            "bad_version",
            working("BAD", 300).replace("api=(2, 0)", "api=(1, 25)"),
            f"needs version 1.25 of the plugin API, this tinycore has {OURS}: upgrade the plugin",
        ),
    ],
)
def test_a_bad_plugin_is_a_line_and_the_rest_is_used(
    install: Install, registry: Make, module: str, body: str, said: str
) -> None:
    good = install("GOOD", f"good_beside_{module}", working("GOOD"), priority=100)
    devices = registry(install("BAD", module, body, priority=300), good)

    with pytest.warns(UserWarning, match="tinycore leaves out") as told:
        assert devices.DEFAULT == "GOOD"
    lines = [str(warning.message) for warning in told]
    assert len(lines) == 1, lines
    assert f"BAD ({module.replace('_', '-')} 0.3.1)" in lines[0]
    assert said in lines[0]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "there is no {0}/presence.toml, which says how it shows; DEV=ODD uses it"),
        ("[[EVEN]]\npriority = 1\n", r"{0}/presence.toml has no table \[\[ODD\]\]"),
        ("[ODD]\npriority = 1\n", r"{0}/presence.toml has no table \[\[ODD\]\]"),
        ("[[ODD]\n", "{0}/presence.toml is not TOML: "),
        ("[[ODD]]\nfiles = ['/']\n", "needs a priority, a whole number"),
        ("[[ODD]]\npriority = 1.5\n", "needs a priority, a whole number"),
        ("[[ODD]]\npriority = 1\nfiles = '/'\n", "files must be a list of texts, not '/'"),
        ("[[ODD]]\npriority = 1\nfiles = [1]\n", r"files must be a list of texts, not \[1\]"),
        ("[[ODD]]\npriority = 1\npaths = ['/']\n", "has 'paths'; known are priority, platforms"),
    ],
)
def test_a_package_with_no_data_or_odd_ones_is_used_where_it_is_named(
    install: Install, registry: Make, data: str, said: str
) -> None:
    module = f"odd_{abs(hash(data))}"
    devices = registry(
        install("ODD", module, working("ODD", 300), presence=data),
        install("EVEN", f"even_{module}", working("EVEN"), priority=100),
    )

    with pytest.warns(
        UserWarning, match="cannot be chosen automatically: .*" + said.format(module)
    ):
        assert devices.DEFAULT == "EVEN"
    assert module not in sys.modules
    with Context(DEV="ODD"):
        assert devices[devices.DEFAULT].name == "ODD"


def test_a_device_that_is_not_seen_is_listed_with_the_reason(
    install: Install, registry: Make
) -> None:
    data = shows("FAR", "priority = 300\nfiles = ['/nowhere/far']")
    devices = registry(install("FAR", "far_toy", working("FAR", 300), presence=data))

    assert devices.get_available_devices() == []
    assert str(devices.states()[0]) == (
        "FAR (far-toy 0.3.1) is ready: not seen by the automatic choice: there is no file "
        "/nowhere/far; DEV=FAR uses it"
    )


# What the data say


def test_each_kind_of_thing_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy7").touch()
    (tmp_path / "libtoy.so.1").touch()
    folder = str(tmp_path)

    assert Sight(1, files=(f"{folder}/toy[0-9]",)).obstacle == ""
    assert Sight(1, files=(f"{folder}/boy", f"{folder}/toy?")).obstacle == ""
    assert Sight(1, libraries=(f"{folder}/libtoy.so.1",)).obstacle == ""
    assert Sight(1, platforms=("plan9", sys.platform)).obstacle == ""
    assert Sight(1, files=("/nowhere/a", "/nowhere/b")).obstacle == (
        "there is no file /nowhere/a or /nowhere/b"
    )
    missing = Sight(1, libraries=("libtoy.so.1", "$TOY_LIBRARY"))
    assert missing.obstacle == "there is no library libtoy.so.1 or $TOY_LIBRARY"
    monkeypatch.setenv("TOY_LIBRARY", f"{folder}/libtoy.so.1")
    assert missing.obstacle == ""
    monkeypatch.setenv("TOY_LIBRARY", "/nowhere/libtoy.so.1")
    assert missing.obstacle
    launched = Sight(1, variables=("TOY_RANK", "OLD_TOY_RANK"))
    assert launched.obstacle == "there is no variable TOY_RANK or OLD_TOY_RANK"
    monkeypatch.setenv("OLD_TOY_RANK", "")
    assert launched.obstacle == ""
    both = Sight(1, files=(f"{folder}/toy7",), libraries=("libnowhere.so",))
    assert both.obstacle == "there is no library libnowhere.so"


def test_libraries_are_found_where_the_loader_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libtoy.so.1").touch()
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(b"glibc-ld.so.cache1.1\0/opt/boy/libboy.so.2\0libboy.so.2\0")
    monkeypatch.setattr(presence, "LOADER_CACHE", str(cache))

    assert presence.is_installed("libboy.so.2")
    assert not presence.is_installed("libboy.so")
    assert not presence.is_installed("libtoy.so.1")
    monkeypatch.setenv(presence.LIBRARY_VARIABLES[0], f"/nowhere{os.pathsep}{tmp_path}")
    assert presence.is_installed("libtoy.so.1")


def test_cards_are_found_on_the_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "PCI_FUNCTIONS", str(tmp_path))
    card = Sight(1, pci=("pci:v00001AB8*bc03*",))

    assert card.obstacle == "", "where no bus can be read, nothing is ruled out"
    for address, vendor, base in (("a", "1AB8", "02"), ("b", "10DE", "03")):
        (tmp_path / address).mkdir()
        alias = f"pci:v0000{vendor}d00002204sv00001043sd000087B5bc{base}sc00i00\n"
        (tmp_path / address / "modalias").write_text(alias)
    assert card.obstacle == "there is no PCI function pci:v00001AB8*bc03*"
    assert Sight(1, pci=("pci:v000010DE*bc03*",)).obstacle == ""


def test_of_several_ways_that_of_this_system_is_told(install: Install) -> None:
    data = shows("TOY", "priority = 9\nplatforms = ['plan9']", "priority = 5\nfiles = ['/none']")
    install("TOY", "toy_ways", presence=data)

    sight = sight_of("toy_ways:BACKEND", "TOY")

    assert (sight.priority, sight.obstacle) == (5, "there is no file /none")


# Interoperation


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
