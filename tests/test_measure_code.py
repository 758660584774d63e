"""The script that counts the code: what it counts as code, docstring, comment, participle."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent


def loaded() -> ModuleType:
    """The script."""
    name = "measure_code"
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = loaded()
TEXT: Final = '''"""A module."""

# why
X = 1


def joined(a: int) -> int:
    """Add.

    More.
    """
    return a + X  # how
'''


def test_lines_are_of_one_kind_each() -> None:
    source = script.Source(Path("a.py"), TEXT)

    assert (source.lines, source.code, source.comments, source.blank) == (12, 3, 1, 3)
    assert len(source.docstring_lines) == 5


def test_tokens_are_those_of_code() -> None:
    code = "X = 1\ndef joined(a: int) -> int:\n    return a + X\n"

    assert script.Source(Path("a.py"), TEXT).tokens == script.Source(Path("b.py"), code).tokens


@pytest.mark.parametrize("text", ['f"{a!r:>{b}} c"', "f'{f\"{a}\"}'"])
def test_an_f_string_is_one_token_on_every_python(text: str) -> None:
    assert script.Source(Path("a.py"), f"x = {text} + y\n").tokens == 5


@pytest.mark.parametrize("name", ["joined", "told_apart", "size_found", "kept"])
def test_a_participle_is_found(name: str) -> None:
    assert script.is_participle(name)


@pytest.mark.parametrize("name", ["join", "seed", "embed", "size_bytes"])
def test_other_words_are_none(name: str) -> None:
    assert not script.is_participle(name)


def test_the_report_counts_a_tree(tmp_path: Path) -> None:
    (tmp_path / "tinycore" / "uop").mkdir(parents=True)
    (tmp_path / "tinycore" / "uop" / "a.py").write_text(TEXT)

    text = script.report(tmp_path)

    assert "| uop | 1 | 12 | 3 | 41.7 % |" in text
    assert "| of them with a participle as first or last word | 100.0 % |" in text
