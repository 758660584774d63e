"""A profile of a card that the emulator plays, through the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

from kfd_standin import Machine
from kfd_standin.cards import NAVI31
from profiled import profile_is_whole
from simulated_amd import backend_of

from tinycore import Context
from tinycore.plugin import register, unregister


@pytest.mark.slow
def test_a_profile_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(backend_of(Machine((NAVI31,))))
    try:
        with Context(DEV="AMD"):
            profile_is_whole("AMD", tmp_path, monkeypatch, assembly=True)
    finally:
        unregister("AMD")
