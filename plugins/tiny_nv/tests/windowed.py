"""Notes for tests of the plans of windows that are tried."""

from __future__ import annotations

import pytest

from tiny_nv import window_plans


def tried_windows(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each plan of windows that is tried from now on, whether it could be done."""
    found: list[bool] = []
    use_windows = window_plans.use_windows

    def noted(*given: object, **named: object) -> bool:
        found.append(use_windows(*given, **named))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(window_plans, "use_windows", noted)
    return found
