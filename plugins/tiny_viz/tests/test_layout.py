"""Diagrams: what is a box, and where the boxes are."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tiny_viz.graphs import diagram_of_launches, diagram_of_text
from tiny_viz.layout import HEIGHT, layered
from tiny_viz.picture import graph
from tinycore import Tensor
from tinycore.errors import ArgumentError


@pytest.mark.parametrize("seed", range(20))
def test_edges_go_down_and_boxes_are_apart(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randrange(2, 120)
    edges = [(draw.randrange(b), b) for b in range(1, count) for _ in range(draw.randrange(3))]
    widths = [draw.uniform(30, 300) for _ in range(count)]

    places, bends = layered(widths, edges)

    for (a, b), bent in zip(edges, bends, strict=True):
        heights = [places[a][1], *(y for _, y in bent), places[b][1]]
        assert all(low < high for low, high in pairwise(heights))
    for a in range(count):
        for b in range(a):
            if abs(places[a][1] - places[b][1]) < HEIGHT:
                assert abs(places[a][0] - places[b][0]) >= (widths[a] + widths[b]) / 2


def test_a_long_chain_goes_on_in_columns() -> None:
    places, _ = layered([100.0] * 10_000, [(n, n + 1) for n in range(9_999)])

    assert max(y for _, y in places) < 10_000
    assert len({x for x, _ in places}) > 50


def test_constants_are_in_the_labels_of_their_users() -> None:
    x = Tensor([[1.0, 2.0]], device="PYTHON").realize()

    labels = [box.label for box in diagram_of_text(repr((x * 3 + 1).graph())).boxes]

    assert labels == ["BUFFER float32 2", "RESHAPE 1×2", "MUL 3.0 1×2", "ADD 1.0 1×2"]


def test_every_line_of_a_kernel_is_a_node() -> None:
    x = Tensor.ones(4, 8, device="PYTHON").contiguous().realize()
    text = repr(graph(x.softmax().schedule()[-1]))

    shown = diagram_of_text(text)

    lines = [line for line in text.splitlines() if " = CONST " not in line]
    assert [box.text for box in shown.boxes] == lines
    assert shown.edges
    assert all(a < b for a, b in shown.edges)


def test_memory_that_is_written_again_is_a_box_of_its_own() -> None:
    bound = [(1, True), (2, False)]
    launches = [(n, 1, "add", "", bound) for n in (1, 2)]

    shown = diagram_of_launches(launches, {1: ("CPU", "int32", 8), 2: ("CPU", "int32", 2_000_000)})

    assert [box.label for box in shown.boxes] == ["2.0 MB #2", "add", "8 B #1", "add", "8 B #1 v2"]
    assert all(a < b for a, b in shown.edges)


def test_a_graph_is_a_picture_and_a_text() -> None:
    x = Tensor([[1.0, 2.0]], device="PYTHON").realize()

    shown = (x + 1).graph()

    assert "ADD float32" in repr(shown)
    picture = shown._repr_svg_()
    assert picture is not None
    assert picture.count("<rect") == 4
    assert "CONST 3.0" in Tensor(3.0, device="PYTHON").graph()._repr_svg_()
    with pytest.raises(ArgumentError, match="needs a tensor"):
        graph(7)
