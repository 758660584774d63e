"""Random expressions in random layouts over processes have the values of NumPy."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import finished, output

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "layouts.py"


@pytest.mark.parametrize("count", [2, 3, 4])
def test_random_expressions(count: int) -> None:
    assert output(count, PROGRAM, "12").count("same") == count


def test_parts_of_different_shapes_are_an_error() -> None:
    program = """
import numpy, tiny_mpi
from tinycore.groups import group
tiny_mpi.from_parts(numpy.zeros((2, 3 + group().rank)))
"""

    errors = finished(2, program).stderr

    assert errors.count("ShapeError: from_parts: rank 0 has (axes, sizes) [2, 2, 3]") == 2
