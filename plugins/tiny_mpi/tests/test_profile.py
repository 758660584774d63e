"""A profile of this device, in a process alone."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mpi4py")

from profiled import profile_is_whole

from tinycore import Context


@pytest.mark.slow
def test_a_profile_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(DEV="RANK"):
        profile_is_whole("RANK", tmp_path, monkeypatch)
