"""Programs kept on disk: a later process loads what an earlier one made of the same kernel."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tinycore
from tests.test_floors import imports_of, module_of
from tinycore import Context, Device, Tensor
from tinycore._lru import Lru
from tinycore._stamp import INDECISIVE_SETTINGS, content_of, sources, stamp
from tinycore.config import settings
from tinycore.engine import compile as compiling
from tinycore.engine.program_cache import LOWERING, load_program, program_key, restored
from tinycore.errors import PluginError
from tinycore.render.base import Limits, LinearKernel, Renderer
from tinycore.schedule import ScheduleItem


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with Context(CACHE_DIR=str(tmp_path), VERIFY=0):
        yield tmp_path


def kernel(number: float) -> ScheduleItem:
    (item,) = (Tensor([1.0, 2.0], device="PYTHON").realize() * number).schedule()
    return item


def test_what_is_kept_is_what_was_made() -> None:
    toolchain = Device["PYTHON"].toolchain
    made = compiling.program_of(kernel(3.5).ast, toolchain)

    assert load_program(kernel(3.5).ast, toolchain) == made
    assert load_program(kernel(4.5).ast, toolchain) is None


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
    toolchain = Device["PYTHON"].toolchain
    compiling.program_of(kernel(6.5).ast, toolchain)
    with Context(TRACE="source"):
        compiling.program_of(kernel(6.5).ast, toolchain)

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
    before = stamp((), ("dialect_of_a_test",))
    times = (tmp_path / "dialect_of_a_test.py").stat()
    (tmp_path / "dialect_of_a_test.py").write_text("# new")
    os.utime(tmp_path / "dialect_of_a_test.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    stamp.cache_clear()
    content_of.cache_clear()

    assert stamp((), ("dialect_of_a_test",)) != before


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


def test_every_file_that_lowers_a_kernel_is_stamped() -> None:
    root = Path(tinycore.__file__).parent
    stamped = {file for part in LOWERING for file in sources(root / part)}

    assert set((root / "lower").rglob("*.py")) <= stamped


UNDECIDED = frozenset(
    {"_collector", "_deferred", "_locks", "_lru", "_stamp", "cache", "config", "errors", "trace"}
    | {"device.buffer", "device.hooks", "device.registry", "engine.counters", "engine.rule_hooks"}
    | {"engine.search", "schedule.limits"}
)
"""Modules that files of a stamp import and that change no program; what they hand on of settings,
rules and plans is in the key by itself."""


def test_every_file_that_a_stamped_one_imports_is_stamped_or_decides_nothing() -> None:
    root = Path(tinycore.__file__).parent
    stamped = {file for part in LOWERING for file in sources(root / part)}
    imported = {
        found.module.removeprefix("tinycore.")
        for file in stamped
        for found in imports_of(file.read_text("utf-8"), module_of(file, root.parent))
    }
    files = {name: root / f"{name.replace('.', '/')}.py" for name in imported - UNDECIDED}

    assert [name for name, file in files.items() if file.exists() and file not in stamped] == []
