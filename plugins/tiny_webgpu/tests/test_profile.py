"""A profile of this device."""

from __future__ import annotations

from pathlib import Path

import pytest
from profiled import profile_is_whole


@pytest.mark.slow
@pytest.mark.usefixtures("on_webgpu")
def test_a_profile_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile_is_whole("WEBGPU", tmp_path, monkeypatch, assembly=False)
