"""Constants of planning say what they are: nobody can judge a bare number."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import pytest

import tinycore

FOLDERS = [Path(tinycore.__file__).parent / name for name in ("lower", "schedule", "render")]
FILES = [file for folder in FOLDERS for file in sorted(folder.rglob("*.py"))]


def bare_numbers(source: str) -> list[str]:
    """Names of a module that stand for a number, in capitals, without a docstring."""
    body = [*ast.parse(source).body, ast.Pass()]
    return [
        node.target.id
        for node, after in pairwise(body)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if node.target.id.isupper() and node.value is not None and is_number(node.value)
        if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant))
    ]


def is_number(value: ast.expr) -> bool:
    """True if an expression is made of numbers alone."""
    parts = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    return all(isinstance(node, parts) for node in ast.walk(value)) and not any(
        isinstance(node, ast.Constant) and not isinstance(node.value, int | float)
        for node in ast.walk(value)
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_number_has_a_docstring(folder: Path) -> None:
    found = {
        file.name: names
        for file in FILES
        if folder in file.parents and (names := bare_numbers(file.read_text("utf-8")))
    }

    assert not found, f"a docstring says what it is, and where it was measured: {found}"


def test_bare_numbers_are_found() -> None:
    source = 'A: Final = 1 << 4\nB: Final = 2\n"""Two."""\nC: Final = (1,)\nD: Final = "text"\n'

    assert bare_numbers(source) == ["A"]
