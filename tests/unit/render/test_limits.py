"""Limits of a device are checked when they are made, field by field."""

from __future__ import annotations

import math
import random
from dataclasses import fields
from typing import Any

import pytest

from tinycore.errors import PluginError
from tinycore.render.base import Limits

WRONG: tuple[Any, ...] = (math.nan, -1, -math.inf, "many", b"4", (0, 1, 1), (1, 2), [4], {}, 2 + 0j)
"""Values that no field of Limits takes."""


@pytest.mark.parametrize("name", [each.name for each in fields(Limits)])
def test_a_field_that_is_none_is_refused_by_its_name(name: str) -> None:
    for value in random.Random(name).sample(WRONG, 5):
        if name == "image" and value == (1, 2):
            continue
        with pytest.raises(PluginError, match=f"^Limits: {name} must be .*, not "):
            Limits(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("threads", 0, "an int from 1 on"),
        ("shared_bytes", 1.5, "an int from 0 on"),
        ("block", (1, 1, 0), "three positive ints"),
        ("grid_varies", 1, "True or False"),
        ("l2_rate", math.inf, "a finite number from 0 on"),
        ("matrix", ("mma",), "a tuple of MatrixUnit"),
        ("subgroup", True, "an int from 1 on"),
    ],
)
def test_a_value_out_of_range_is_told(name: str, value: Any, wanted: str) -> None:
    with pytest.raises(PluginError) as raised:
        Limits(**{name: value})

    assert f"Limits: {name} must be {wanted}, not {value!r}" in str(raised.value)
