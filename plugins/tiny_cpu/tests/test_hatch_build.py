"""The build hook of the wheel: pool.ll is generated where a compiler is, and never silently not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/tiny_cpu"
COMMITTED = (PACKAGE / "pool.ll").read_text(encoding="utf-8")


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delenv("GENERATE_POOL", raising=False)
    return module


def build(hooks: ModuleType, version: str = "standard", root: Path = ROOT) -> dict[str, str]:
    """Generated files, as text, by their names in the wheel."""
    hook = hooks.PoolHook(str(root), {}, None, None, "", "wheel")
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize(version, data)
    made = {name: Path(file).read_text("utf-8") for file, name in data["force_include"].items()}
    hook.finalize(version, data, "")
    assert not any(Path(file).exists() for file in data["force_include"])
    return made


def test_the_committed_pool_is_made_of_the_present_source(hooks: ModuleType) -> None:
    command = hooks.find_clang()
    if command is None:
        pytest.skip(f"needs clang {hooks.CLANG}: others word the same code differently")

    assert hooks.generate(PACKAGE, command) == COMMITTED
    assert build(hooks) == {"tiny_cpu/pool.ll": COMMITTED}


def test_a_generated_pool_goes_into_the_wheel(
    hooks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "find_clang", lambda: ("clang",))
    monkeypatch.setattr(hooks, "generate", lambda *_: COMMITTED)

    assert build(hooks) == {"tiny_cpu/pool.ll": COMMITTED}
    assert build(hooks, "editable") == {}


def test_a_stale_pool_fails_the_build(hooks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "find_clang", lambda: ("clang",))
    monkeypatch.setattr(hooks, "generate", lambda *_: COMMITTED + "; a change of pool.c\n")

    with pytest.raises(RuntimeError, match=r"not what clang makes of pool\.c"):
        build(hooks)


def test_no_compiler_of_a_user_fails_a_source_archive(
    hooks: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "src").symlink_to(ROOT / "src")
    (tmp_path / "PKG-INFO").touch()
    monkeypatch.setattr(hooks, "find_clang", lambda: ("clang",))
    monkeypatch.setattr(hooks, "generate", lambda *_: COMMITTED + "; another patch of clang\n")

    assert build(hooks, root=tmp_path) == {}
    monkeypatch.setenv("GENERATE_POOL", "1")
    with pytest.raises(RuntimeError, match=r"not what clang makes of pool\.c"):
        build(hooks, root=tmp_path)


def test_only_a_release_needs_the_compiler(
    hooks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = sys.executable, "-c", "print('clang version 21.1.0')"
    monkeypatch.setattr(hooks, "clangs", lambda: iter([older]))

    assert build(hooks) == {}
    monkeypatch.setenv("GENERATE_POOL", "1")
    with pytest.raises(RuntimeError, match="generated, by clang 22, which is neither on PATH"):
        build(hooks)
