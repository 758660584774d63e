"""Matrix units as data: every element of a matrix is held once, and maps survive as text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.lower.matrices import DOT, MFMA, MMA, SIMDGROUP, UNITS, WMMA
from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, VerifyError
from tinycore.uop.matrix import MatrixUnit, lane_map
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.parse import from_text
from tinycore.uop.text import to_text
from tinycore.uop.verify import verify


@pytest.mark.parametrize("name", ["a", "b", "out"])
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_every_element_is_held_by_as_many_lanes_as_any_other(unit: MatrixUnit, name: str) -> None:
    held = unit.fragment(name)
    places = [
        tuple(held.map.place(axis, lane, element) for axis in held.axes)
        for lane in range(unit.threads)
        for element in range(held.count)
    ]
    elements = unit.size(held.axes[0]) * unit.size(held.axes[1])

    assert len(set(places)) == elements
    assert {places.count(place) for place in places} == {unit.threads * held.count // elements}


def test_a_map_is_that_of_the_manual() -> None:
    a = MMA.fragment("a").map  # PTX ISA, mma.m16n8k16: a0 is at row lane / 4, column lane % 4 * 2

    assert [(a.place("m", 9, i), a.place("k", 9, i)) for i in range(8)] == [
        *((2, 2), (2, 3), (10, 2), (10, 3), (2, 10), (2, 11), (10, 10), (10, 11))
    ]


def test_neighbors_are_elements_side_by_side() -> None:
    assert MMA.fragment("a").map.neighbors == ("k", 2)
    assert WMMA.fragment("b").map.neighbors == ("k", 16)
    assert MFMA.fragment("out").map.neighbors == ("m", 4)
    assert SIMDGROUP.fragment("out").map.neighbors == ("n", 2)
    assert DOT.fragment("out").map.neighbors == ("k", 1)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"a_map": "k2 k4 m1 m2 m4 | k1 m8 k4"}, "names other bits"),
        ({"b_map": "k2 k4 n1 n2 | k1 k8"}, "has 4 bits for 32 lanes"),
        ({"out_map": "n2 n4 m1 m2 - | n1 m8"}, "twice"),
        ({"out_map": "n2 n4 m1 m2 m4 n1 m8"}, "no '|'"),
        ({"out_map": "n2 n4 m1 m2 q4 | n1 m8"}, "'q4' is no bit"),
        ({"k": 12}, "powers of two"),
        ({"a": dtypes.float16.vec(2)}, "scalar"),
    ],
)
def test_what_is_no_unit_is_refused(change: dict[str, object], problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem.replace("|", r"\|")):
        replace(MMA, **change)  # type: ignore[arg-type]


def test_a_map_is_read_once() -> None:
    assert lane_map(MMA.a_map) is lane_map(MMA.a_map)


def matrix(unit: MatrixUnit) -> UOp:
    a, b, c = (UOp.const(unit.fragment(name).vector, 1) for name in ("a", "b", "out"))
    return UOp(Op.MATRIX, unit.fragment("out").vector, (a, b, c), unit)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_the_same_after_text(unit: MatrixUnit) -> None:
    assert from_text(to_text(matrix(unit))) is matrix(unit)


def test_fragments_of_other_types_are_found() -> None:
    node = matrix(MMA)
    verify(UOp.sink(node), "lowered")
    wrong = node.with_src((node.src[1], node.src[0], node.src[2]))

    with pytest.raises(VerifyError, match="mma_m16n8k16_f16 makes"):
        verify(UOp.sink(wrong), "lowered")
