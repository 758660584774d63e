"""The registry: every state a backend can be in, what is said about it, and which is chosen."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tinycore.config import Context, settings
from tinycore.device.backend import API_VERSION, Backend, Interface
from tinycore.device.discovery import (
    BACKEND_GROUP,
    BUILT_IN,
    EntryPoint,
    Plugins,
    State,
    _groups,
)
from tinycore.device.registry import Device, Registry
from tinycore.device.target import Target
from tinycore.errors import (
    CompilerUnavailable,
    DeviceUnavailable,
    PluginError,
    SettingError,
    UnknownDevice,
)
from tinycore.render.base import Limits

Install = Callable[..., EntryPoint]
Make = Callable[..., Registry]
Toy = Callable[..., Backend]
Reached = Callable[..., tuple[Registry, list[str]]]


def state_of(registry: Registry, name: str) -> State:
    return next(state.state for state in registry.states() if state.name == name)


def reason_of(registry: Registry, name: str) -> str:
    return next(state.reason for state in registry.states() if state.name == name)


# Imports, and when they happen


def test_a_named_device_imports_only_its_own_plugin(install: Install, registry: Make) -> None:
    devices = registry(install("ONE", "toy_one"), install("TWO", "toy_two"))
    devices.backend("ONE")

    assert "toy_one" in sys.modules
    assert "toy_two" not in sys.modules


def test_importing_the_face_looks_for_nothing() -> None:
    code = (
        "import sys, tinycore.plugin\n"
        "heavy = {'pluggy', 'importlib.metadata', 'tinycore.builtin'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_installed_metadata_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tiny_toy-0.3.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: Tiny_Toy\nVersion: 0.3.1\n")
    (folder / "entry_points.txt").write_text(f"[{BACKEND_GROUP}]\nTOY = tiny_toy:BACKEND\n")
    monkeypatch.syspath_prepend(tmp_path)
    _groups.cache_clear()
    try:
        claim = Plugins().find("TOY")
    finally:
        _groups.cache_clear()

    assert claim is not None
    assert (claim.origin, claim.reference) == ("tiny-toy 0.3.1", "tiny_toy:BACKEND")
    assert claim.state is State.FOUND


def test_the_cores_own_entry_points_are_those_of_its_metadata() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8")

    for name, reference in BUILT_IN.items():
        assert f'{name} = "{reference}"' in text


# Names


def test_the_one_spelling_of_a_name(toy: Toy, registry: Make) -> None:
    devices = registry()
    devices.register(toy())

    assert devices.canonicalize("toy") == devices.canonicalize("TOY:0") == "TOY"
    assert devices.canonicalize("toy:2") == "TOY:2"
    with Context(DEV="TOY:1"):
        assert devices.canonicalize(None) == "TOY:1"


def test_an_unknown_device_is_told_with_those_installed(install: Install, registry: Make) -> None:
    devices = registry(install("ONE", "toy_one"), install("TWO", "toy_two"))

    with pytest.raises(UnknownDevice) as raised:
        devices["CPU"]  # whose extra is known

    assert str(raised.value) == (
        "no backend named 'CPU' is installed. Installed: ONE, TWO. "
        'Install it with `pip install "tinycore[cpu]"`, or set DEV.'
    )


def test_an_unknown_device_without_an_extra(registry: Make) -> None:
    with pytest.raises(UnknownDevice) as raised:
        registry().canonicalize("nosuch")

    assert str(raised.value) == (
        "no backend named 'NOSUCH' is installed. Installed: none. No extra of tinycore brings "
        "one of "
        "that name; a package that does declares it in the entry-point group tinycore.backends. "
        "Install one, or set DEV to what is there."
    )


def test_a_renderer_taken_for_a_device_is_told(toy: Toy, registry: Make) -> None:
    devices = registry()
    devices.register(toy())

    with pytest.raises(UnknownDevice, match="C is a renderer of TOY: DEV=TOY:C"):
        devices["C"]


# States


def test_a_package_whose_own_module_is_gone(registry: Make) -> None:
    devices = registry(EntryPoint("TOY", "tiny_toy:BACKEND", "tiny-toy", "0.3.1"))

    with pytest.raises(DeviceUnavailable) as raised:
        devices["TOY"]

    assert str(raised.value) == (
        "TOY (tiny-toy 0.3.1) is import-failed: its own module tiny_toy is missing, so the "
        "installation "
        "is damaged: `pip install --force-reinstall tiny-toy`"
    )
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)


def test_a_package_that_lacks_a_dependency(install: Install, registry: Make) -> None:
    devices = registry(install("TOY", "toy_lacking", "import nosuchlibrary\n", "tiny-toy"))

    with pytest.raises(DeviceUnavailable) as raised:
        devices["TOY"]

    assert str(raised.value) == (
        "TOY (tiny-toy 0.3.1) is import-failed: tiny-toy needs the module nosuchlibrary, which "
        "is not "
        "installed: `pip install --upgrade tiny-toy` brings what it declares, else install it"
    )


@pytest.mark.parametrize("source", ["1 / 0", "import sys; sys.exit(3)", "BACKEND ="])
def test_a_package_that_breaks_on_import(install: Install, registry: Make, source: str) -> None:
    devices = registry(install("TOY", f"toy_breaks{len(source)}", source))
    (state,) = devices.states()

    assert state.state is State.IMPORT_FAILED
    assert "raised" in state.reason
    assert state.error is not None
    assert state.version == "0.3.1"


@pytest.mark.parametrize(
    ("api", "advice"),
    [
        ((API_VERSION[0] + 1, 0), "tinycore, e.g. `pip install --upgrade tinycore`"),
        ((API_VERSION[0], API_VERSION[1] + 1), "tinycore, e.g. `pip install --upgrade tinycore`"),
        (
            (API_VERSION[0] - 1, 18),
            (
                "the plugin, e.g. `pip install --upgrade tiny-toy`; its author finds what has "
                "changed under Versions in docs/write-a-backend.md"
            ),
        ),
    ],
    ids=["next major version", "next minor version", "major version before"],
)
def test_another_version_of_the_api_is_told_with_both(
    install: Install, registry: Make, api: tuple[int, int], advice: str
) -> None:
    module = f"toy_api_{api[0]}_{api[1]}"
    version = ".".join(map(str, api))
    devices = registry(install("TOY", module, distribution="tiny-toy", api=api))

    assert state_of(devices, "TOY") is State.INCOMPATIBLE
    ours = ".".join(map(str, API_VERSION))
    assert reason_of(devices, "TOY") == (
        f"needs version {version} of the plugin API, this tinycore has {ours}: upgrade {advice}"
    )


def test_a_later_api_with_fields_unknown_here(install: Install, registry: Make) -> None:
    major, minor = API_VERSION
    said = f"name='TOY', api=({major}, {minor + 1}), open=print, renderers={{'C': print}}, later=1"
    source = f"from tinycore.plugin import Backend\nBACKEND = Backend({said})\n"
    devices = registry(install("TOY", "toy_later", source))

    assert state_of(devices, "TOY") is State.INCOMPATIBLE
    assert f"TOY needs version {major}.{minor + 1} of the plugin API" in reason_of(devices, "TOY")


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("from tinycore.plugin import Backend, SupportsTeleport", "tinycore.plugin"),
        ("from tinycore.render.quantum import Quantum", "tinycore.render.quantum"),
    ],
    ids=["a name", "a module"],
)
def test_a_plugin_that_imports_what_a_later_core_has(
    install: Install, registry: Make, toy: Toy, line: str, module: str
) -> None:
    """It is told in one line with what to do, and the rest goes on."""
    devices = registry(install("LATER", f"toy_of_{len(line)}", f"{line}\n", "tiny-later"))
    devices.register(toy())
    reason = reason_of(devices, "LATER")

    assert state_of(devices, "LATER") is State.INCOMPATIBLE
    assert "\n" not in reason
    assert f"has not what it imports of {module}" in reason
    assert "`pip install --upgrade tinycore`" in reason
    assert devices["TOY"].name == "TOY"


def test_a_plugin_that_imports_what_another_package_lacks(install: Install, registry: Make) -> None:
    devices = registry(install("TOY", "toy_of_numpy", "from numpy import teleport\n"))

    assert state_of(devices, "TOY") is State.IMPORT_FAILED
    assert "ImportError: cannot import name 'teleport'" in reason_of(devices, "TOY")


def test_a_plugin_that_cannot_be_imported_keeps_nothing_alive(
    install: Install, registry: Make
) -> None:
    """Its error is kept without frames, which would keep what their callers hold."""
    devices = registry(install("TOY", "toy_in_pieces", "1 / 0\n"))

    def ask() -> weakref.ref[Callable[[], None]]:
        def held() -> None:
            """Something of a caller."""

        assert state_of(devices, "TOY") is State.IMPORT_FAILED
        return weakref.ref(held)

    assert ask()() is None


OTHER_NAME = """
from tinycore.plugin import Backend
BACKEND = Backend(name="OTHER", api=(2, 0), open=print, renderers={"C": print})
"""


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("toy_text", "BACKEND = 'TOY'", "toy_text:BACKEND is no Backend, but of type str"),
        ("toy_other", OTHER_NAME, "toy_other:BACKEND declares the name OTHER, its entry point TOY"),
    ],
)
def test_a_declaration_that_does_not_fit(
    install: Install, registry: Make, module: str, source: str, reason: str
) -> None:
    devices = registry(install("TOY", module, source))

    assert state_of(devices, "TOY") is State.INCOMPATIBLE
    assert reason_of(devices, "TOY") == reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"count": 0}, "no device was found"),
        ({"probe": "load the driver: modprobe toy"}, "load the driver: modprobe toy"),
        ({"platforms": ("beos",)}, f"it runs on beos, and this is {sys.platform}"),
        ({"count": "1 // 0"}, "looking for devices failed: ZeroDivisionError: "),
    ],
)
def test_no_hardware(install: Install, registry: Make, fields: dict[str, Any], reason: str) -> None:
    devices = registry(install("TOY", f"toy_none{len(reason)}", **fields))

    assert state_of(devices, "TOY") is State.NO_HARDWARE
    assert reason in reason_of(devices, "TOY")
    with pytest.raises(DeviceUnavailable, match=r"TOY \(.*\) is no-hardware: "):
        devices["TOY"]


def test_hardware_that_appears_is_found(toy: Toy, registry: Make) -> None:
    found = [0]
    devices = registry()
    devices.register(toy(count=lambda: found[0]))
    assert devices.get_available_devices() == []

    found[0] = 1
    assert devices["TOY"].name == "TOY"


def test_the_states_of_a_device_that_works(toy: Toy, registry: Make) -> None:
    devices = registry()
    devices.register(toy())
    assert state_of(devices, "TOY") is State.READY

    devices["TOY:1"]
    assert state_of(devices, "TOY") is State.OPEN
    assert str(devices.states()[0]) == "TOY (this program) is open"

    devices.close()
    assert state_of(devices, "TOY") is State.READY


# Two owners, lists, strictness


@pytest.fixture
def contested(install: Install, registry: Make) -> Registry:
    return registry(
        install("TOY", "toy_first", distribution="tiny-first"),
        install("TOY", "toy_second", distribution="tiny-second"),
    )


def test_two_packages_that_claim_one_name(contested: Registry) -> None:
    with pytest.raises(PluginError) as raised:
        contested["TOY"]

    assert str(raised.value) == (
        "TOY (tiny-first 0.3.1) is blocked: tiny-first 0.3.1 and tiny-second 0.3.1 both claim "
        "the name. "
        "Uninstall one, or leave one out: TINYCORE_PLUGINS_DENY=tiny-first or "
        "TINYCORE_PLUGINS_DENY=tiny-second"
    )


def test_a_setting_settles_which_package_owns_a_name(contested: Registry) -> None:
    with Context(TINYCORE_PLUGINS_DENY="tiny-second"):
        assert contested.states()[0].distribution == "tiny-first"
        assert state_of(contested, "TOY") is State.READY


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"TINYCORE_PLUGINS_DENY": "toy"},
         "TINYCORE_PLUGINS_DENY names toy; take it out of there to use it"),
        ({"TINYCORE_PLUGINS": "none"},
         "TINYCORE_PLUGINS=none leaves it out; add TOY to it, or set it to auto, to use it"),
        ({"TINYCORE_PLUGINS": "CPU,NV"},
         "TINYCORE_PLUGINS=CPU,NV leaves it out; add TOY to it, or set it to auto, to use it"),
    ],
)  # fmt: skip
def test_a_list_leaves_a_backend_out(
    install: Install, registry: Make, setting: dict[str, str], reason: str
) -> None:
    devices = registry(install("TOY", "toy_blocked", "raise AssertionError('imported')"))

    with Context(**setting):
        assert state_of(devices, "TOY") is State.BLOCKED
        assert reason_of(devices, "TOY") == reason
        with pytest.raises(DeviceUnavailable, match=r"TOY \(toy-blocked 0.3.1\) is blocked: "):
            devices["TOY"]


def test_a_list_lets_a_backend_in(install: Install, registry: Make) -> None:
    devices = registry(install("TOY", "toy_allowed"))

    with Context(TINYCORE_PLUGINS="TOY"):
        assert state_of(devices, "TOY") is State.READY


def test_the_cores_own_devices_need_no_plugin() -> None:
    with Context(TINYCORE_PLUGINS="none"):
        assert Registry().get_available_devices() == ["PYTHON", "NULL"]


def test_strict_raises_for_any_broken_plugin(install: Install, registry: Make) -> None:
    devices = registry(install("BAD", "toy_strict", "1 / 0"), install("TOY", "toy_fine"))

    with Context(TINYCORE_STRICT=1), pytest.raises(PluginError) as raised:
        devices.get_available_devices()

    assert str(raised.value) == (
        "TINYCORE_STRICT is set, and plugins are broken:\n"
        "  BAD (toy-strict 0.3.1): importing toy_strict:BACKEND raised ZeroDivisionError: "
        "division by zero"
    )


# Opening


def test_a_device_is_opened_once(toy: Toy, registry: Make, toy_runtime: Any) -> None:
    opened = []

    def open_toy(index: int, interface: str) -> Any:
        opened.append((index, interface))
        return toy_runtime(index, interface)

    devices = registry()
    devices.register(toy(open=open_toy))

    assert devices["TOY"] is devices["toy:0"]
    assert devices["TOY:3"].index == 3
    assert opened == [(0, ""), (3, "")]


def test_the_first_interface_that_works_is_taken(
    toy: Toy, registry: Make, toy_runtime: Any
) -> None:
    def open_toy(index: int, interface: str) -> Any:
        if interface == "FAST":
            raise DeviceUnavailable("no FAST here")
        return toy_runtime(index, interface)

    devices = registry()
    devices.register(toy(open=open_toy, interfaces=("FAST", "SLOW")))

    assert devices["TOY"].interface == "SLOW"


def test_an_interface_that_was_named_is_taken_or_fails(
    toy: Toy, registry: Make, toy_runtime: Any
) -> None:
    def open_toy(index: int, interface: str) -> Any:
        if interface == "FAST":
            raise OSError("no /dev/toy")
        return toy_runtime(index, interface)

    devices = registry()
    devices.register(toy(open=open_toy, interfaces=("FAST", "SLOW")))

    with Context(DEV="FAST+TOY"), pytest.raises(DeviceUnavailable) as raised:
        devices["TOY"]
    assert str(raised.value) == "TOY cannot be opened: through FAST: OSError: no /dev/toy"
    assert isinstance(raised.value.__cause__, OSError)
    with (
        Context(DEV="ODD+TOY"),
        pytest.raises(SettingError, match="TOY has no interface ODD; it has FAST, SLOW"),
    ):
        devices["TOY"]


# Interfaces with a probe of their own


NO_NODE = "/dev/toy is missing: load its driver"


@pytest.fixture
def reached(toy: Toy, registry: Make, toy_runtime: Any) -> Reached:
    """Makes a registry with a TOY of the given interfaces, and the list of those that opened it."""

    def make(**interfaces: Interface) -> tuple[Registry, list[str]]:
        opened: list[str] = []

        def open_toy(index: int, interface: str) -> Any:
            opened.append(interface)
            return toy_runtime(index, interface)

        devices = registry()
        devices.register(toy(open=open_toy, interfaces=interfaces))
        return devices, opened

    return make


def test_an_interface_that_changes_the_machine_is_used_only_where_it_is_named(
    reached: Reached,
) -> None:
    devices, opened = reached(KFD=Interface(probe=lambda: NO_NODE), PCI=Interface(automatic=False))

    with pytest.raises(DeviceUnavailable) as raised:
        devices["TOY"]
    assert f"{NO_NODE}; used only where it is named: DEV=PCI+TOY" in str(raised.value)
    assert (opened, state_of(devices, "TOY")) == ([], State.NO_HARDWARE)
    with Context(DEV="PCI+TOY"):
        assert state_of(devices, "TOY") is State.READY
        assert devices.get_available_devices() == ["TOY"]
        assert devices["TOY"].interface == "PCI"
    assert opened == ["PCI"]


def test_only_interfaces_that_must_be_named(
    reached: Reached,
) -> None:
    devices, opened = reached(PCI=Interface(automatic=False), MOCK=Interface(automatic=False))

    assert reason_of(devices, "TOY") == "used only where it is named: DEV=PCI+TOY, DEV=MOCK+TOY"
    assert opened == []


def test_the_probe_of_the_interface_named_decides(
    reached: Reached,
) -> None:
    devices, opened = reached(KFD=Interface(), PCI=Interface(probe=lambda: "it needs root"))

    assert state_of(devices, "TOY") is State.READY
    with Context(DEV="PCI+TOY"), pytest.raises(DeviceUnavailable, match="it needs root"):
        devices["TOY"]
    assert opened == []
    assert devices["TOY"].interface == "KFD"


def test_an_interface_whose_probe_refuses_is_not_opened(
    reached: Reached,
) -> None:
    devices, opened = reached(
        KFD=Interface(probe=lambda: NO_NODE), NONE=Interface(count=lambda: 0), PCI=Interface()
    )

    assert devices["TOY"].interface == "PCI"
    assert opened == ["PCI"]


def test_each_interface_says_why_it_is_not_available(
    reached: Reached,
) -> None:
    def broken() -> str:
        raise OSError("no sysfs")

    devices, _ = reached(
        KFD=Interface(probe=lambda: NO_NODE),
        PCI=Interface(automatic=False),
        USB=Interface(count=lambda: 0),
        BUS=Interface(probe=broken),
        ODD=Interface(probe=lambda: 3),  # type: ignore[arg-type, return-value]
        MAC=Interface(platforms=("plan9",)),
    )

    (found,) = [state.interfaces for state in devices.states() if state.name == "TOY"]

    assert [(one.name, one.automatic) for one in found] == [
        ("KFD", True), ("PCI", False), ("USB", True), ("BUS", True), ("ODD", True), ("MAC", True)
    ]  # fmt: skip
    assert [one.reason for one in found] == [
        NO_NODE,
        "",
        "no device was found",
        "looking for devices failed: OSError: no sysfs",
        "probe() of TOY returned 3, which is no str",
        f"it runs on plan9, and this is {sys.platform}",
    ]
    assert found[1].is_available


def test_names_of_interfaces_are_answered_for_by_the_backend(toy: Toy, registry: Make) -> None:
    devices = registry()
    devices.register(toy(interfaces=("FAST", "SLOW"), probe=lambda: NO_NODE))

    assert reason_of(devices, "TOY") == NO_NODE
    (found,) = [state.interfaces for state in devices.states() if state.name == "TOY"]
    assert [(one.name, one.reason, one.automatic) for one in found] == [
        ("FAST", NO_NODE, True), ("SLOW", NO_NODE, True)
    ]  # fmt: skip


def test_variables_fill_what_dev_leaves_open(
    toy: Toy, registry: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_IFACE", "slow")
    monkeypatch.setenv("OTHER_C", "1")
    devices = registry()
    devices.register(toy(interfaces=("FAST", "SLOW")))
    devices.register(toy(name="OTHER"))

    with Context(DEV="TOY:C"):
        assert devices.targets() == (
            Target("TOY", renderer="C", interface="SLOW"), Target("OTHER", renderer="C")
        )  # fmt: skip
    with Context(DEV="FAST+TOY"):
        assert devices["TOY"].interface == "FAST"


def test_an_open_device_does_not_change_its_interface(toy: Toy, registry: Make) -> None:
    devices = registry()
    devices.register(toy(interfaces=("FAST", "SLOW")))
    device = devices["TOY"]

    with (
        Context(DEV="SLOW+TOY"),
        pytest.raises(
            DeviceUnavailable, match="TOY is open through FAST; choose SLOW before its first use"
        ),
    ):
        _ = device.toolchain


def test_visible_devices_are_numbered_anew(toy: Toy, registry: Make) -> None:
    devices = registry()
    devices.register(toy(interfaces=("PCI",)))

    with Context(DEV="PCI:2,5+TOY"):
        assert devices["TOY:1"].runtime.index == 5  # type: ignore[attr-defined]
        with pytest.raises(DeviceUnavailable, match="TOY:2 is not among the visible devices 2,5"):
            devices["TOY:2"]


def test_a_capability_without_its_methods_is_refused(toy: Toy, registry: Make) -> None:
    devices = registry()
    devices.register(toy(capabilities=frozenset({"host_memory"})))

    with pytest.raises(DeviceUnavailable) as raised:
        devices["TOY"]

    assert str(raised.value) == (
        "TOY cannot be opened: PluginError: TOY declares 'host_memory', but its allocator "
        "ToyAllocator "
        "has not the methods of SupportsMap"
    )


def test_closing_gives_memory_back_first(toy: Toy, registry: Make) -> None:
    devices = registry()
    devices.register(toy())
    device = devices["TOY"]
    runtime: Any = device.runtime
    device.allocator.free(device.allocator.alloc(8), 8)
    devices.close("TOY")

    assert runtime.closed
    assert not runtime.allocator.live
    assert devices.opened() == []


# Toolchains


def test_the_toolchain_is_what_dev_asks_for(toy: Toy, registry: Make, toy_runtime: Any) -> None:
    backend = toy()
    devices = registry()
    devices.register(toy(renderers={"A": backend.renderers["C"], "B": backend.renderers["C"]}))

    with Context(DEV="TOY:B:x1,+y"):
        assert devices["TOY"].toolchain.arch == "x1,+y"
        assert devices["TOY"].toolchain is devices["TOY"].toolchain
    assert devices["TOY"].toolchain.arch == ""
    with (
        Context(DEV="TOY:Q"),
        pytest.raises(SettingError, match="TOY has no renderer Q; it has A, B"),
    ):
        _ = devices["TOY"].toolchain


def test_a_compiler_that_is_missing_is_skipped_unless_it_was_named(
    toy: Toy, registry: Make
) -> None:
    def missing(arch: str) -> Any:
        raise CompilerUnavailable("toycc is not on PATH; install it")

    devices = registry()
    devices.register(toy(renderers={"A": missing, "C": toy().renderers["C"]}))

    assert devices["TOY"].toolchain.name == "C"
    with Context(DEV="TOY:A"), pytest.raises(CompilerUnavailable, match="toycc is not on PATH"):
        _ = devices["TOY"].toolchain


def test_a_renderer_of_another_version_of_the_core_is_told(toy: Toy, registry: Make) -> None:
    """Its maker names what this core has not: here a field of Limits that there once was."""

    def older(arch: str) -> Any:
        return Limits(fused_multiply_add=True)  # type: ignore[call-arg]

    devices = registry()
    devices.register(toy(renderers={"A": older}, api=(2, 0)))

    ours = ".".join(map(str, API_VERSION))
    with pytest.raises(PluginError, match="TOY: its renderer A is broken: TypeError") as raised:
        _ = devices["TOY"].toolchain
    assert "unexpected keyword argument 'fused_multiply_add'" in str(raised.value)
    assert f"version 2.0 of the plugin API, this tinycore has {ours}" in str(raised.value)
    with Context(DEV="TOY:A"), pytest.raises(PluginError, match="its renderer A is broken"):
        _ = devices["TOY"].toolchain


def test_no_compiler_at_all(toy: Toy, registry: Make) -> None:
    def missing(arch: str) -> Any:
        raise CompilerUnavailable("toycc is not on PATH; install it")

    devices = registry()
    devices.register(toy(renderers={"A": missing}))

    with pytest.raises(CompilerUnavailable) as raised:
        _ = devices["TOY"].toolchain
    assert str(raised.value) == (
        "no compiler of TOY can be used:\n  A: toycc is not on PATH; install it"
    )


# The choice


def test_dev_decides_and_a_context_changes_it(toy: Toy, registry: Make) -> None:
    devices = registry()
    devices.register(toy())

    with Context(DEV="TOY:1:C"):
        assert devices.DEFAULT == "TOY:1"
        with Context(DEV="TOY"):
            assert devices.DEFAULT == "TOY"


def test_the_default_can_be_set(toy: Toy, registry: Make) -> None:
    devices = registry()
    devices.register(toy())

    with Context():
        devices.DEFAULT = "TOY:2"
        assert devices.DEFAULT == settings.DEV == "TOY:2"
        with pytest.raises(SettingError, match="is not understood"):
            devices.DEFAULT = "T O Y"


def test_a_named_device_never_falls_back(toy: Toy, registry: Make) -> None:
    devices = registry()
    devices.register(toy(count=lambda: 0))
    devices.register(toy(name="FINE"))

    with Context(DEV="TOY"), pytest.raises(DeviceUnavailable, match="no device was found"):
        devices[devices.DEFAULT]


def test_the_automatic_choice_goes_by_priority_and_explains_itself(
    toy: Toy, registry: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = registry()
    devices.register(toy(name="GONE", priority=300, count=lambda: 0))
    devices.register(toy(name="FAST", priority=200))
    devices.register(toy(name="SLOW", priority=100))
    devices.register(toy(name="MOCK", priority=-1))

    with Context(DEBUG=1):
        assert devices.DEFAULT == "FAST"
    assert capsys.readouterr().err.splitlines() == [
        "device   FAST compiles with C",
        "device   skipped GONE (no-hardware: no device was found)",
        "device   FAST is the default; set DEV to choose another",
    ]


def test_the_automatic_choice_skips_what_cannot_be_opened(
    toy: Toy, registry: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(index: int, interface: str) -> Any:
        raise DeviceUnavailable("the driver hangs")

    devices = registry()
    devices.register(toy(name="HANGS", priority=300, open=refuse))
    devices.register(toy(name="FINE"))

    with Context(DEBUG=1):
        assert devices.DEFAULT == "FINE"
    skipped = "device   skipped HANGS (HANGS cannot be opened: the driver hangs)"
    assert skipped in capsys.readouterr().err
    assert state_of(devices, "HANGS") is State.NO_HARDWARE


@pytest.mark.parametrize("error", [ValueError("no such arch"), OSError(5, "I/O"), SystemExit(3)])
def test_the_automatic_choice_goes_on_after_a_broken_toolchain(
    toy: Toy, registry: Make, error: BaseException
) -> None:
    def broken(arch: str) -> Any:
        raise error

    devices = registry()
    devices.register(toy(name="BROKEN", priority=300, renderers={"C": broken}))
    devices.register(toy(name="FINE"))

    with pytest.warns(UserWarning, match="leaves out BROKEN .* is incompatible: .* C is broken"):
        assert devices.DEFAULT == "FINE"
    assert state_of(devices, "BROKEN") is State.INCOMPATIBLE


def test_a_plugin_with_a_word_for_a_priority_is_a_state(install: Install, registry: Make) -> None:
    devices = registry(install("TOY", "toy_high", priority="'high'"))

    (found,) = devices.states()

    assert found.state is State.INCOMPATIBLE
    assert "priority must be a whole number, not 'high'" in found.reason
    with pytest.raises(DeviceUnavailable, match=r"TOY \(toy-high 0\.3\.1\) is incompatible"):
        devices["TOY"]


def test_what_is_used_only_by_name_is_never_chosen(toy: Toy, registry: Make) -> None:
    devices = registry()
    devices.register(toy(priority=-1))

    with pytest.raises(DeviceUnavailable, match="no device can be used: none is installed"):
        _ = devices.DEFAULT
    assert devices["TOY"].name == "TOY"


def test_ending_up_on_an_interpreter_is_told(toy: Toy, registry: Make) -> None:
    devices = registry()
    devices.register(toy(name="FAST", count=lambda: 0))
    devices.register(toy(name="SLOW", priority=0))

    with pytest.warns(UserWarning, match="may be slower than the processor") as told:
        assert devices.DEFAULT == "SLOW"
    assert str(told[0].message) == (
        "tinycore computes on SLOW, which may be slower than the processor: nothing that ranks "
        "higher is ready. "
        "Not ready: FAST; `tinycore devices` says why. "
        '`pip install "tinycore[cpu]"` helps; DEV=SLOW stays with it.'
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Context(DEV="SLOW"):
            assert devices.DEFAULT == "SLOW"


def test_an_older_spelling_chooses(
    toy: Toy, registry: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_C", "1")
    devices = registry()
    devices.register(toy(priority=1))
    devices.register(toy(name="FAST"))

    assert devices.DEFAULT == "TOY"
    assert devices.targets()[0].renderer == "C"


# Registering from a program


def test_a_registered_backend_goes_before_an_installed_one(
    toy: Toy, install: Install, registry: Make
) -> None:
    devices = registry(install("TOY", "toy_shadowed", "1 / 0"))
    devices.register(toy())
    assert state_of(devices, "TOY") is State.READY

    devices.unregister("TOY")
    assert state_of(devices, "TOY") is State.IMPORT_FAILED


def test_an_open_device_is_not_replaced(toy: Toy, registry: Make) -> None:
    devices = registry()
    devices.register(toy())
    devices["TOY"]

    with pytest.raises(PluginError) as raised:
        devices.register(toy())
    assert str(raised.value) == (
        "TOY is open; close it before registering another: Device.close('TOY')"
    )
    devices.close("TOY")
    devices.register(toy())


def test_registering_needs_this_version_of_the_api(toy: Toy, registry: Make) -> None:
    with pytest.raises(PluginError, match=r"TOY needs version 3.0 of the plugin API"):
        registry().register(toy(api=(3, 0)))


def test_devices_are_closed_when_the_program_ends() -> None:
    code = (
        "from tinycore.device import Buffer, Device\nfrom tinycore.device.hooks import hooks\n"
        "from tinycore.dtype import dtypes\n"
        "import pluggy\n"
        "class Watch:\n"
        "    @pluggy.HookimplMarker('tinycore')\n"
        "    def tinycore_backend_closing(self, device): print('closing', device)\n"
        "hooks.register(Watch())\n"
        "kept = Buffer('PYTHON', 4, dtypes.int8).ensure_allocated()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )

    assert (done.stdout, done.stderr) == ("closing PYTHON\n", "")


def test_the_one_registry_has_the_cores_devices() -> None:
    assert {"PYTHON", "NULL"} <= set(Device.get_available_devices())
