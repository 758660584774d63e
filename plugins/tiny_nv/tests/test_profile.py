"""Profiles of cards that the executor and the stand-in of NVIDIA's driver play."""

from __future__ import annotations

from pathlib import Path

import pytest
from profiled import profile_is_whole
from rm_standin import Machine
from rm_standin.cards import H200
from simulated_nv import backend_of

from tinycore import Context
from tinycore.plugin import register, unregister


@pytest.mark.slow
@pytest.mark.usefixtures("simulated")
def test_a_profile_of_cuda_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile_is_whole("CUDA", tmp_path, monkeypatch, assembly=True)


@pytest.mark.slow
def test_a_profile_of_nv_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(backend_of(Machine((H200,), version="580.159.03")))
    try:
        with Context(DEV="NV:PTX"):
            profile_is_whole("NV", tmp_path, monkeypatch, assembly=True)
    finally:
        unregister("NV")
