"""Rows that vectors do not divide: what is left of them costs what it is, and no more."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest

from tests.unit.lower.test_tile import CPU, run
from tinycore import Context, Tensor
from tinycore.lower.plan import planned
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

NARROW = replace(CPU, vector_bytes=32, vector_registers=16, threads=1)


def fills(kernel: UOp) -> list[int]:
    """How often each array of a kernel's own is filled, by the loops that do."""
    after = [n for n in kernel.toposort() if n.op is Op.AFTER and n.src[0].op is Op.DEFINE_LOCAL]
    arrays = dict.fromkeys(n.src[0] for n in after)
    ends = {a: {s for n in after for s in n.src[1:] if n.src[0] is a} for a in arrays}
    return [sum(s.op is Op.END for s in found) for found in ends.values()]


@pytest.mark.parametrize("columns", [192, 196, 199])
def test_what_all_parts_of_a_row_read_is_computed_once(columns: int) -> None:
    with Context(DEV="CPU"):
        (launch,) = Tensor.empty(16, columns).softmax(-1).schedule()
    plan, kernel = planned(launch.ast, NARROW)

    assert fills(kernel) == [1, 1, 1], "the greatest, powers and their sum"
    numpy.testing.assert_allclose(run(launch.ast, plan), run(launch.ast, ()), rtol=1e-5)
