"""Tensors in a notebook."""

from __future__ import annotations

from tiny_viz.notebook import tensor_html
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
