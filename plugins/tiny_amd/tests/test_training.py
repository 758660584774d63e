"""A network that learns on a card that the emulator plays, through the driver."""

from __future__ import annotations

import pytest

pytest.importorskip("llvmlite")

from kfd_standin import Machine
from kfd_standin.cards import NAVI31
from simulated_amd import backend_of
from training_programs import digits_are_learned

from tinycore import Context, dtypes
from tinycore.dtype import DType
from tinycore.plugin import register, unregister


@pytest.mark.slow
@pytest.mark.parametrize(
    ("aql", "dtype"), [(False, dtypes.float32), (True, dtypes.half)], ids=["PM4", "AQL"]
)
def test_digits_are_learned(aql: bool, dtype: DType) -> None:
    register(backend_of(Machine((NAVI31,)), aql=aql))
    try:
        with Context(DEV="AMD"):
            digits_are_learned(dtype)
    finally:
        unregister("AMD")
