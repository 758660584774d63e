"""The map of the core: floors list their files, docs/map.md is fresh, each floor has a page."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent


def loaded() -> ModuleType:
    """The script that writes the page."""
    spec = importlib.util.spec_from_file_location("map", ROOT / "docs" / "generate_map.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = loaded()


@pytest.mark.parametrize("floor", script.FLOORS)
def test_the_docstring_of_a_floor_lists_its_files(floor: str) -> None:
    assert set(script.listed_files(floor)) == script.files_of(floor)


@pytest.mark.slow
def test_the_map_is_what_the_docstrings_say() -> None:
    written = (ROOT / "docs" / "map.md").read_text("utf-8")

    assert written == script.generate(), "run python docs/generate_map.py"


@pytest.mark.parametrize("floor", script.FLOORS)
def test_the_page_of_a_floor_says_what_comes_in_what_goes_out_and_where_to_add(floor: str) -> None:
    text = (ROOT / "docs" / "floors" / f"{floor}.md").read_text("utf-8")

    assert re.findall(r"^## (.+)", text, re.MULTILINE) == [
        "In and out",
        "How it works",
        "Where to add what",
    ]


@pytest.mark.parametrize("floor", script.FLOORS)
def test_the_page_of_a_floor_names_files_that_exist(floor: str) -> None:
    text = (ROOT / "docs" / "floors" / f"{floor}.md").read_text("utf-8")
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text))
    folders = (ROOT / "tinycore" / floor, ROOT / "tinycore", ROOT)

    assert {name for name in named if not any((f / name).exists() for f in folders)} == set()
