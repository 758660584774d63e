"""Notes for tests of the plans of windows that are tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tiny_nv import window_plans
from tinycore.tiling import Draft


def tried_windows(monkeypatch: pytest.MonkeyPatch) -> Mapping[object, bool]:
    """For each kernel and plan of windows tried from now on, whether that could be done.

    A thread that waited long for another one to plan a kernel plans it, too: that counts once.
    """
    found: dict[object, bool] = {}
    use_windows = window_plans.use_windows

    def noted(draft: Draft, **named: Any) -> bool:
        key = draft.kernel, *named.values()
        found[key] = use_windows(draft, **named)
        return found[key]

    monkeypatch.setattr(window_plans, "use_windows", noted)
    return found
