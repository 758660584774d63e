"""A profile of this device."""

from __future__ import annotations

from pathlib import Path

import pytest
from profiled import profile_is_whole

from tinycore import Context


@pytest.mark.slow
@pytest.mark.usefixtures("driver")
def test_a_profile_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(DEV="CL"):
        profile_is_whole("CL", tmp_path, monkeypatch, assembly=False)
