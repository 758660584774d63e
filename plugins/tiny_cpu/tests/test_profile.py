"""A profile of this device."""

from __future__ import annotations

from pathlib import Path

import pytest
from profiled import profile_is_whole

from tinycore import Context


@pytest.mark.slow
def test_a_profile_is_whole(
    toolchain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Context(DEV=f"CPU:{toolchain}"):
        profile_is_whole("CPU", tmp_path, monkeypatch, assembly=True)
