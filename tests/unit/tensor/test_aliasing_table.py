"""The table of docs/aliasing.md, row by row, beside torch and NumPy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from tinycore.errors import AliasError, GradientError
from tinycore.tensor import Tensor, graph

PAGE = Path(__file__).parents[3] / "docs" / "aliasing.md"
ROW = r"^\| `(.+)` \| (view|value|read|refused) \| (\S+) \| (\S+) \|$"
ROWS: list[tuple[str, ...]] = re.findall(ROW, PAGE.read_text(encoding="utf-8"), re.MULTILINE)
SLOPE = r"^\| `(.*loss = .+)` \| (`.+`(?:, or refused)?) \| (refused|`.+`) \|$"
SLOPES: list[tuple[str, ...]] = re.findall(SLOPE, PAGE.read_text(encoding="utf-8"), re.MULTILINE)
DATA = numpy.array([[1.0, 2.0], [3.0, 4.0]], numpy.float32)
REFUSALS = (AliasError, RuntimeError, ValueError)


def relation(x: Any, expression: str, scope: dict[str, Any]) -> str:
    """Relation of the result of an expression to `x`: view, value, read or refused."""
    result = eval(expression, {**scope, "x": x})
    x[...] = 50.0
    shows = bool((numpy.array(result.tolist()) == 50.0).any())
    try:
        result[...] = 70.0
    except REFUSALS:
        return "read" if shows else "refused"
    shown = bool((numpy.array(x.tolist()) == 70.0).any())
    assert shown == shows, f"{expression}: one way only"
    return "view" if shown else "value"


def test_the_table_has_its_rows() -> None:
    assert len(ROWS) > 20
    assert {ours for _, ours, _, _ in ROWS} == {"view", "value", "read", "refused"}


@pytest.mark.parametrize("state", ["computed", "lazy", "read"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_is_so(row: tuple[str, ...], state: str) -> None:
    x = Tensor(DATA).realize() * 1
    if state == "computed":
        x.realize()
    elif state == "read":
        x.tolist()
    assert relation(x, row[0], {"Tensor": Tensor}) == row[1]


@pytest.mark.parametrize("row", [row for row in ROWS if row[2] != "-"], ids=lambda row: row[0])
def test_a_row_is_so_in_torch(row: tuple[str, ...]) -> None:
    assert relation(torch.tensor(DATA), row[0], {}) == row[2]


@pytest.mark.parametrize("row", [row for row in ROWS if row[3] != "-"], ids=lambda row: row[0])
def test_a_row_is_so_in_numpy(row: tuple[str, ...]) -> None:
    assert relation(DATA.copy(), row[0], {}) == row[3]


# --- gradients


def test_the_table_of_gradients_has_its_rows() -> None:
    assert len(SLOPES) == 11


def expected_of(cell: str) -> list[float] | None:
    """The gradient in a cell, None for a refusal."""
    if cell == "refused":
        return None
    return [float(n) for n in cell.removesuffix(", or refused").strip("`[]").split(", ")]


@pytest.mark.parametrize("read", [False, True], ids=["", "read"])
@pytest.mark.parametrize("row", SLOPES, ids=lambda row: row[0])
def test_a_gradient_is_so(row: tuple[str, ...], read: bool) -> None:
    w = Tensor([1.0, 2.0], requires_grad=True).realize()
    scope: dict[str, Any] = {"w": w, "zeros": Tensor.zeros(2), "ones": Tensor.ones(2)}
    exec(row[0], scope)
    tensors = [x for x in scope.values() if isinstance(x, Tensor)]
    if read:
        scope["loss"].item()
        Tensor.realize(*[x for x in tensors if graph.is_memory(x.uop)])
        if row[1].endswith("or refused"):
            with pytest.raises(GradientError, match="written to in place"):
                scope["loss"].backward()
            return
    scope["loss"].backward()
    Tensor.realize(*[x for x in tensors if graph.is_memory(x.uop)])
    assert w.grad is not None
    assert w.grad.tolist() == expected_of(row[1])


@pytest.mark.parametrize("row", SLOPES, ids=lambda row: row[0])
def test_a_gradient_is_so_in_torch(row: tuple[str, ...]) -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)

    def assign(value: torch.Tensor) -> None:
        with torch.no_grad():
            w.copy_(value)

    scope: dict[str, Any] = {
        "w": w,
        "zeros": torch.zeros(2),
        "ones": torch.ones(2),
        "assign": assign,
    }
    exec(row[0].replace("w.assign(", "assign("), scope)
    wanted = expected_of(row[2])
    if wanted is None:
        with pytest.raises(RuntimeError, match="inplace"):
            scope["loss"].backward()
        return
    scope["loss"].backward()
    assert w.grad is not None
    assert w.grad.tolist() == wanted
