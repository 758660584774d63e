"""Programs kept on disk: a later process loads what an earlier one made of the same kernel."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import tinycore
from tests.test_floors import FLOORS
from tinycore import Context, Device, Tensor, cache
from tinycore._lru import Lru
from tinycore._stamp import (
    ABOVE_ENGINE,
    ABOVE_TENSOR,
    DECISIVE_SETTINGS,
    INDECISIVE_SETTINGS,
    content_of,
    stamp_of_modules,
)
from tinycore.cache import DiskCache
from tinycore.config import settings
from tinycore.device.protocols import ProgramInfo
from tinycore.engine import compile as compiling
from tinycore.engine import program_cache
from tinycore.engine.program_cache import load_program, program_key, restored
from tinycore.errors import DeviceError, PluginError
from tinycore.render.base import Limits, LinearKernel, Renderer
from tinycore.schedule import ScheduleItem
from tinycore.schedule.canonical import canonicalize
from tinycore.schedule.compiled import schedule_for
from tinycore.tensor.storage.realization import choose_retention


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with Context(CACHE_DIR=str(tmp_path), VERIFY=0):
        yield tmp_path


def kernel(number: float) -> ScheduleItem:
    (item,) = (Tensor([1.0, 2.0], device="PYTHON").realize() * number).schedule()
    return item


def test_what_is_kept_is_what_was_made() -> None:
    device = Device["PYTHON"]
    made, _ = compiling.loaded_program(kernel(3.5).ast, device, device.toolchain, None)

    assert load_program(kernel(3.5).ast, device.toolchain) == made
    assert load_program(kernel(4.5).ast, device.toolchain) is None


class Nothing(Renderer):
    """A renderer whose author forgot to return the source."""

    def render(self, kernel: LinearKernel) -> str:
        return None  # type: ignore[return-value]


class Unwritten(Renderer):
    """A renderer whose author has yet to write the method."""


@pytest.mark.parametrize(
    ("renderer", "message"),
    [
        (Nothing, r"render\(\) of PYTHON returned NoneType for \w+; a source is text"),
        (Unwritten, r"Unwritten, a renderer, lacks render\(\)"),
    ],
)
def test_a_renderer_without_source_is_told(renderer: type[Renderer], message: str) -> None:
    toolchain = replace(Device["PYTHON"].toolchain, renderer=renderer(Limits()))

    with pytest.raises((PluginError, NotImplementedError), match=message):
        compiling.compile_kernel(kernel(7.5).ast, toolchain)


@pytest.mark.parametrize(
    ("kind", "plain", "value"),
    [
        (tuple[int, ...], [1, 2, 3], (1, 2, 3)),
        (tuple[frozenset[int], ...], [[1], [2], [3]], (frozenset([1]), frozenset([2]), {3})),
        (tuple[str, tuple[int, ...]], ["a", [1, 2, 3]], ("a", (1, 2, 3))),
    ],
    ids=str,
)
def test_tuples_are_restored_by_the_types_of_their_elements(
    kind: object, plain: object, value: object
) -> None:
    assert restored(kind, plain) == value


def test_a_kept_program_is_not_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    (Tensor([1.0, 2.0], device="PYTHON") * 5.5).realize()
    monkeypatch.setattr(compiling, "programs", Lru(1024))
    monkeypatch.setattr(compiling, "compile_kernel", None)

    assert (Tensor([3.0, 4.0], device="PYTHON") * 5.5).tolist() == [16.5, 22.0]


def test_who_watches_kernels_being_made_sees_each(capsys: pytest.CaptureFixture[str]) -> None:
    device = Device["PYTHON"]
    compiling.loaded_program(kernel(6.5).ast, device, device.toolchain, None)
    with Context(TRACE="source"):
        compiling.loaded_program(kernel(6.5).ast, device, device.toolchain, None)

    assert "source" in capsys.readouterr().err


def test_the_key_tells_settings_and_targets_apart() -> None:
    ast, toolchain = kernel(7.5).ast, Device["PYTHON"].toolchain
    plain = program_key(ast, toolchain)
    with Context(NOOPT=1):
        assert program_key(ast, toolchain) != plain
    with Context(DEBUG=2, JIT=0):
        assert program_key(ast, toolchain) == plain


def test_every_setting_left_out_of_the_key_exists() -> None:
    assert {setting.name for setting in settings} >= INDECISIVE_SETTINGS


def test_the_stamp_follows_the_files_of_the_renderer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dialect_of_a_test.py").write_text("# old")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("dialect_of_a_test")
    before = stamp_of_modules(("dialect_of_a_test",))
    times = (tmp_path / "dialect_of_a_test.py").stat()
    (tmp_path / "dialect_of_a_test.py").write_text("# new")
    os.utime(tmp_path / "dialect_of_a_test.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    stamp_of_modules.cache_clear()
    content_of.cache_clear()

    assert stamp_of_modules(("dialect_of_a_test",)) != before


FIRST_RESULT = """
import sys
from tinycore import Tensor
print((Tensor([1.0, 2.0], device="PYTHON") + 1).tolist())
print("tinycore.lower.pipeline" in sys.modules)
"""


@pytest.mark.slow
def test_a_second_process_loads_no_lowering(folder: Path) -> None:
    environment = os.environ | {"CACHE_DIR": str(folder), "VERIFY": "0"}
    results = [
        subprocess.check_output([sys.executable, "-c", FIRST_RESULT], env=environment, text=True)
        for _ in range(2)
    ]

    assert results == ["[2.0, 3.0]\nTrue\n", "[2.0, 3.0]\nFalse\n"]


@pytest.mark.parametrize(("above", "floor"), [(ABOVE_ENGINE, 4), (ABOVE_TENSOR, 5)])
def test_a_stamp_leaves_out_what_is_above_its_floor_and_nothing_else(
    above: tuple[str, ...], floor: float
) -> None:
    """test_floors.py proves: no lower floor imports those parts."""
    root = Path(tinycore.__file__).parent
    names = {name: f"{name}.py" if (root / f"{name}.py").is_file() else name for name in FLOORS}

    assert {names[name] for name, (height, _) in FLOORS.items() if height > floor} == {*above}


class Typed(Renderer):
    """A renderer of which no file is known, as one that was typed at a prompt."""

    def render(self, kernel: LinearKernel) -> str:
        raise NotImplementedError


def test_code_without_a_file_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain = replace(Device["PYTHON"].toolchain, renderer=Typed(Limits()))
    assert program_key(kernel(8.5).ast, toolchain) is not None
    monkeypatch.setattr(Typed, "__module__", "typed_at_a_prompt")

    assert program_key(kernel(8.5).ast, toolchain) is None
    assert load_program(kernel(8.5).ast, toolchain) is None


@dataclass
class Machine:
    """A compiler that returns what it is told to, and a device that loads nothing else but that."""

    name: str = "BROKEN"
    key: str = "BROKEN 1.0"
    sound: bool = False
    compiled: int = 0

    def compile(self, source: str) -> bytes:
        self.compiled += 1
        found: bytes = Device["PYTHON"].toolchain.compiler.compile(source)
        return found if self.sound else b"damaged"

    def load(self, binary: bytes, info: ProgramInfo) -> Any:
        if binary == b"damaged":
            raise DeviceError("the program is damaged")
        return Device["PYTHON"].load(binary, info)


def load(machine: Machine, number: float) -> None:
    toolchain = replace(Device["PYTHON"].toolchain, compiler=machine)
    compiling.loaded_program(kernel(number).ast, machine, toolchain, None)  # type: ignore[arg-type]


def test_what_no_device_has_loaded_is_not_kept() -> None:
    """A compiler that runs into a full disk, or is killed, may return half a binary."""
    machine = Machine()
    with pytest.raises(DeviceError, match="damaged"):
        load(machine, 9.5)
    machine.sound, machine.compiled = True, 0
    load(machine, 9.5)
    load(machine, 9.5)

    assert machine.compiled == 1


def test_a_kept_program_that_does_not_load_is_compiled_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(sound=True)
    load(machine, 10.5)
    monkeypatch.setattr(cache, "get", damaged)
    load(machine, 10.5)

    assert machine.compiled == 2


def damaged(table: str, key: str) -> bytes | None:
    """The content of the cache, but for damaged binaries."""
    content = DiskCache.get(cache._chosen(), table, key)
    head = content.partition(b"\n")[0] + b"\n" if content and table == "program" else b""
    return content and head + b"damaged"


def test_equal_text_of_another_compiler_is_another_binary() -> None:
    """As after an update of a plugin, which runs other passes of the same LLVM."""
    toolchain = Device["PYTHON"].toolchain
    ours = program_cache.binary_key("text", toolchain)
    other = Machine(key=toolchain.compiler.key)

    assert program_cache.binary_key("text", replace(toolchain, compiler=other)) != ours


@pytest.mark.parametrize("name", DECISIVE_SETTINGS)
def test_programs_and_schedules_are_kept_by_every_decisive_setting(name: str) -> None:
    """In memory as on disk: which kernels there are depends on how each would be lowered."""
    ast, device = kernel(11.5).ast, Device["PYTHON"]
    form = canonicalize([Tensor([1.0, 2.0], device="PYTHON").realize().exp().uop])
    value = getattr(settings, name)
    runner = compiling.runner_for(ast, "PYTHON")
    schedule = schedule_for(form, choose_retention)
    key = program_key(ast, device.toolchain)
    with Context(**{name: not value if type(value) is bool else value + 1}):
        assert program_key(ast, device.toolchain) != key
        assert compiling.runner_for(ast, "PYTHON") is not runner
        assert schedule_for(form, choose_retention) is not schedule
    assert compiling.runner_for(ast, "PYTHON") is runner
    assert schedule_for(form, choose_retention) is schedule
