"""A network that learns on cards of the stand-in, through the driver NV."""

from __future__ import annotations

import pytest
from rm_standin import Machine
from rm_standin.cards import GA102, H200
from simulated_nv import backend_of
from training_programs import digits_are_learned

from tinycore import Context, dtypes
from tinycore.plugin import register, unregister


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["PTX", "NVRTC"])
def test_digits_are_learned(compiler: str, request: pytest.FixtureRequest) -> None:
    """In floats by kernels of ours on a Hopper, in halves by nvrtc's on an Ampere."""
    is_compiled = compiler == "NVRTC"
    if is_compiled:
        request.getfixturevalue("nvrtc")
    facts, version = (GA102, "570.144") if is_compiled else (H200, "580.159.03")
    machine = Machine((facts,), version=version)
    register(backend_of(machine))
    try:
        with Context(DEV=f"NV:{compiler}"):
            digits_are_learned(dtypes.half if is_compiled else dtypes.float32)
    finally:
        unregister("NV")
    assert machine.launched
