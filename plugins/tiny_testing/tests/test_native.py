"""Modules made of C declarations import, and know what was declared."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from cffi import CDefError

from tiny_testing.native import write_native

DECLARATIONS = """
    typedef struct { int width; struct { double x, y; } at; } place;
    typedef int (*called_back)(place *one, void *other);
    int puts(const char *text);
"""


def test_a_module_of_declarations_knows_types_and_functions(tmp_path: Path) -> None:
    file = tmp_path / "made_here.py"
    write_native("made_here", DECLARATIONS, file)
    spec = importlib.util.spec_from_file_location("made_here", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert module.ffi.sizeof("place") == 24
    assert module.ffi.typeof("called_back").args[0] is module.ffi.typeof("place *")
    assert module.ffi.dlopen(None).puts


def test_the_layout_is_one_element_a_line(tmp_path: Path) -> None:
    file = tmp_path / "made_here.py"
    write_native("made_here", DECLARATIONS, file)

    text = file.read_text()
    assert text.startswith("# ruff: noqa\n")
    assert max(map(len, text.splitlines())) < 400


def test_what_is_no_declaration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CDefError, match="parse error"):
        write_native("made_here", "struct { int width", tmp_path / "made_here.py")
