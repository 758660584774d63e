"""Names that moved to the package of support for drivers, which older packages import from here."""

from __future__ import annotations

import pytest

import tiny_hcq
from tinycore import plugin
from tinycore.errors import PluginError


@pytest.mark.parametrize("name", plugin.NAMES_OF_DRIVER_SUPPORT)
def test_a_name_that_moved_is_found(name: str) -> None:
    assert getattr(plugin, name) is getattr(tiny_hcq, name)


def test_the_line_that_installs_them_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "entry_points", lambda group: ())

    with pytest.raises(
        PluginError, match=r'HCQCompiled comes with `pip install "tinycore\[hcq\]"`'
    ):
        plugin.HCQCompiled  # noqa: B018  asking is the test
    with pytest.raises(AttributeError, match="has no attribute 'HcqCompiled'"):
        plugin.HcqCompiled  # noqa: B018
