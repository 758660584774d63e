"""Made-up matrix instructions: a renderer declares one, and nothing else in the tree knows of it.

A declaration is a row of data and the words of a language. What is here would be one file of a
plugin: products are planned for the instruction, written in the language, and run, as for any.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final

import numpy
import pytest
from matrix_programs import Sources

from tests.unit.lower.matrices import DOT, OUTER
from tests.unit.lower.test_matrix_product import converted_product
from tiny_testing.accelerator import CORRECT, backend_of
from tiny_testing.accelerator.device import LIMITS, Rewriter
from tinycore import Context, Tensor, dtypes
from tinycore.device import Device
from tinycore.lower.pipeline import lower
from tinycore.plugin import register_observer, unregister_observer
from tinycore.render.base import Limits
from tinycore.render.cstyle import CStyle, MatrixCall
from tinycore.uop.matrix import MatrixUnit

SINGLE: Final = (dtypes.float32,) * 3
QUAD: Final = MatrixUnit(
    *("quad_4x4x4", 4, 4, 4, *SINGLE, 4),
    *("m1 m2 | k1 k2", "n1 n2 | k1 k2", "m1 m2 | n1 n2"),
)
"""Four lanes that hold a row, a column and a row of sums each."""
UNITS: Final = (
    QUAD,
    replace(QUAD, name="crossed_4x4x4", a_map="m2 k1 | m1 k2", b_map="n2 n1 | k2 k1"),
    MatrixUnit(
        *("alone_4x4x4", 4, 4, 4, *SINGLE, 1),
        *("| k1 k2 m1 m2", "| k1 k2 n1 n2", "| n1 n2 m1 m2"),
    ),
    MatrixUnit("row_1x4x4", 1, 4, 4, *SINGLE, 1, "| k1 k2", "| k1 k2 n1 n2", "| n1 n2"),
    MatrixUnit("column_4x1x4", 4, 1, 4, *SINGLE, 4, "m1 m2 | k1 k2", "- - | k1 k2", "m1 m2 |"),
    MatrixUnit("outer_4x4x1", 4, 4, 1, *SINGLE, 4, "m1 m2 |", "n1 n2 |", "n1 n2 | m1 m2"),
    DOT,
    OUTER,
)
SIZES: Final = [(4, 4, 4), (16, 24, 12), (13, 10, 7), (64, 64, 64)]
"""Rows, steps and columns."""


@pytest.fixture
def sources() -> Iterator[Sources]:
    found = Sources()
    register_observer(found)
    with Context(CCACHE=0, VERIFY=1):
        yield found
    unregister_observer(found)


def limits_with(unit: MatrixUnit, subgroup: int) -> Limits:
    """The reference accelerator's limits, with a unit in place of its own."""
    return replace(LIMITS, matrix=(unit,), subgroup=subgroup, shuffles=(), threads=1, copies=None)


@functools.cache
def device_with(unit: MatrixUnit, subgroup: int) -> str:
    """A device that has the unit, registered once."""
    number = UNITS.index(unit) + (len(UNITS) if subgroup > unit.threads else 0)
    name = f"MADE{string.ascii_uppercase[number]}"
    limits = limits_with(unit, subgroup)
    parts = replace(CORRECT, name=name, renderer=partial(Rewriter, limits), limits=limits)
    Device.register(backend_of(parts))
    return name


def check_product(device: str, unit: MatrixUnit, size: tuple[int, int, int]) -> None:
    """Compare a product in a unit's types with NumPy's; small integers are exact in all of them."""
    rows, inner, columns = size
    generator = numpy.random.default_rng(0)
    left, right = (generator.integers(-3, 4, shape) for shape in ((rows, inner), (inner, columns)))
    a, b = (
        Tensor(x.astype("f"), device=device).cast(kind).realize()
        for x, kind in ((left, unit.a), (right, unit.b))
    )
    assert numpy.array_equal(a.matmul(b, dtype=unit.out).numpy(), left @ right)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_declared_instruction_computes_products(
    unit: MatrixUnit, size: tuple[int, int, int], sources: Sources
) -> None:
    check_product(device_with(unit, unit.threads), unit, size)
    assert sum("MATRIX" in text for text in sources.texts) == 1


@pytest.mark.parametrize("unit", [DOT, OUTER], ids=lambda unit: unit.name)
def test_an_instruction_of_one_thread_is_one_of_each_in_a_subgroup(
    unit: MatrixUnit, sources: Sources
) -> None:
    check_product(device_with(unit, 32), unit, (70, 33, 50))
    assert sum("MATRIX" in text for text in sources.texts) == 1


class Language(CStyle):
    """A language with words for the instruction."""

    types: ClassVar = {**CStyle.types, dtypes.index: "int"}
    builtins: ClassVar[Mapping[str, str]] = {"grid": "group({0})", "block": "thread({0})"}
    barrier: ClassVar[str] = "barrier();"
    matrix: ClassVar[Mapping[str, MatrixCall]] = {
        QUAD.name: MatrixCall("quad({0}, {1}, {2})", "float4 quad(float4 a, float4 b, float4 c);")
    }


def test_a_language_writes_the_instruction_by_its_table() -> None:
    renderer = Language(limits_with(QUAD, QUAD.threads))
    text = renderer.render(lower(converted_product(64, 64, 64, "float32"), renderer, "product"))

    assert text.startswith("float4 quad(float4 a, float4 b, float4 c);\n")
    assert "= quad(" in text
    assert " * data" not in text, "a multiply-add is left"
