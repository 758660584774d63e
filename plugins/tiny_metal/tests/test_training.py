"""Networks that learn on GPUs of mocked Macs: an M1, an M3, and a discrete one without bfloat."""

from __future__ import annotations

import pytest
from training_programs import digits_are_learned

from tinycore import dtypes

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("simulated")]


def test_digits_are_learned() -> None:
    digits_are_learned()


def test_digits_are_learned_in_halves() -> None:
    digits_are_learned(dtypes.half)
