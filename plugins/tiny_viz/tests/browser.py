"""A headless Chromium for the page; tests skip where none is installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
SIZE: Final = {"width": 1280, "height": 760}


def chromium() -> str:
    """The path of a Chromium; skips the test where there is none."""
    named = os.environ.get("TINY_VIZ_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium: apt install chromium, or name one by TINY_VIZ_CHROMIUM")
    return found


@contextmanager
def opened_browser() -> Iterator[Any]:
    """A context of a browser; whatever goes wrong in a page fails the test at its end."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    path = chromium()
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        context = browser.new_context(viewport=SIZE)
        context.set_default_timeout(60_000)
        yield context
        browser.close()
