"""Tensors in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import tinycore
from tiny_viz.notebook import show_tensors, tensor_html
from tiny_viz.store import Writer
from tiny_viz.timeline import WIDTH, timeline
from tinycore import GlobalCounters, Tensor


def test_memory_is_shown_with_an_excerpt() -> None:
    found = tensor_html(Tensor([[1.0, 2.5], [3.0, 4.0]], device="PYTHON").realize())

    assert "2 × 2, float32, on PYTHON" in found
    assert "<td>2.5</td>" in found


def test_long_axes_are_shown_by_their_ends() -> None:
    found = tensor_html(Tensor(list(range(100)), device="PYTHON").realize())

    assert found.count("<td>") == 9
    assert "<td>…</td>" in found
    assert "<td>99</td>" in found


def test_nothing_is_computed_to_be_shown() -> None:
    tensor = Tensor([1, 2], device="PYTHON") + 1
    before = GlobalCounters.kernel_count

    assert "not computed yet" in tensor_html(tensor)
    assert GlobalCounters.kernel_count == before


def test_a_number_and_many_axes_are_shown() -> None:
    assert "<p>7</p>" in tensor_html(Tensor(7, device="PYTHON").contiguous().realize())
    deep = tensor_html(Tensor([[[1, 2]], [[3, 4]]], device="PYTHON").realize())
    assert "the first of an axis" in deep
    assert "<td>2</td>" in deep


CELLS = {
    "x": ("text/html", "<b>Tensor</b> 2 × 2, float32, on PYTHON"),
    "x + 1": ("text/html", "not computed yet"),
    "(x + 1).graph()": ("image/svg+xml", ">ADD 1.0 2×2</text>"),
    "(x + 1).schedule()[-1]": ("image/svg+xml", ">LOAD"),
    "(x + 1).schedule()[-1].ast": ("image/svg+xml", ">LOAD"),
    "found": ("text/html", ">PYTHON kernels</text>"),
}
"""The last line of cells, and what each shows."""


@pytest.fixture
def shell() -> Any:
    """IPython, in which a tensor is defined and a profile recorded."""
    name = "IPython.core.interactiveshell"
    kind: Any = pytest.importorskip(name, reason="pip install ipython").InteractiveShell
    made = kind.instance()
    show_tensors()
    made.run_cell(
        "import tinycore; from tinycore import Context, Tensor\n"
        "x = Tensor([[1.0, 2.0], [3.0, 4.0]], device='PYTHON').realize()\n"
        "with tinycore.profile() as found:\n    (x * 2).realize()"
    ).raise_error()
    yield made
    kind.clear_instance()


@pytest.mark.parametrize("cell", CELLS)
def test_cells_of_ipython_show_tensors_graphs_and_profiles(cell: str, shell: Any) -> None:
    result = shell.run_cell(cell)
    result.raise_error()
    shown, _ = shell.display_formatter.format(result.result)

    kind, text = CELLS[cell]
    assert text in shown[kind]
    if cell == "found":
        assert " mul " in shown["text/plain"], "a terminal shows the table"


def test_a_timeline_is_a_picture_of_all_lanes(tmp_path: Path) -> None:
    x = Tensor([[1.0, 2.5], [3.0, 4.0]], device="PYTHON").realize()
    with tinycore.profile(tmp_path / "one.tinyviz") as found:
        (x @ x).softmax().realize()

    picture = ElementTree.fromstring(timeline(found.path))
    texts = {each.text for each in picture.iter() if each.tag.endswith("}text")}
    assert "PYTHON kernels" in texts
    titles = [each.text or "" for each in picture.iter() if each.tag.endswith("}title")]
    assert any(title.startswith("reduce_") for title in titles)
    assert timeline(found.path) in found._repr_html_()


def test_a_timeline_of_many_launches_has_a_span_for_a_pixel(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "many.tinyviz")
    name = "<script>alert(1)</script>"
    writer.put("kernels", [(1, name, "CPU", "kernels", 1, 1, "[]", "[]", 0, 0, "[]", 0)])
    writer.put("launches", [(n + 1, n * 1000, 900, 1, 1, b"") for n in range(19_000)])
    writer.put("meta", [("nanoseconds", str(19_000_000))])
    writer.close()

    picture = timeline(writer.path)
    assert WIDTH // 2 < picture.count("<rect") <= WIDTH
    assert "<script" not in picture
    assert ElementTree.fromstring(picture) is not None
