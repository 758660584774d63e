"""Level 0 of the suite on plugins that do what importing a plugin must not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tiny_testing.suite import contract
from tiny_testing.suite.case import NotApplicable
from tiny_testing.suite.subject import Subject

DECLARATION = """
from tinycore.plugin import Backend, deferred
BACKEND = Backend(
    name="EAGER", api=(2, 0), open=deferred("nosuch:open"), renderers={"C": deferred("nosuch:c")}
)
"""

THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Makes a subject whose plugin begins with some lines."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(lines: str) -> Any:
        (tmp_path / "eager.py").write_text(lines + DECLARATION)
        return SimpleNamespace(candidate=SimpleNamespace(reference="eager:BACKEND"))

    return make


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("import numpy\n", "it imports numpy"),
        (THREAD, "it starts 1 threads"),
        ("log = open(__file__)\n", "it opens .*eager.py"),
        ("import ctypes\nlibrary = ctypes.CDLL(None)\n", "it loads .*None"),
    ],
)  # fmt: skip
def test_what_importing_must_not_do(plugin: Callable[[str], Any], lines: str, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        contract.test_import_opens_nothing(plugin(lines))


def test_an_import_that_takes_long(
    plugin: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "ATTEMPTS", 1)

    with pytest.raises(AssertionError, match=r"importing eager:BACKEND takes \d+ ms, more than 50"):
        contract.test_import_takes_under_50_ms(plugin("import time\ntime.sleep(0.06)\n"))


def test_an_import_that_fails(plugin: Callable[[str], Any]) -> None:
    with pytest.raises(AssertionError, match="importing eager:BACKEND fails:"):
        contract.test_import_opens_nothing(plugin("1 / 0\n"))


def test_a_light_import_is_fine(plugin: Callable[[str], Any]) -> None:
    contract.test_import_opens_nothing(plugin(""))


def test_a_registered_backend_is_not_imported() -> None:
    subject: Any = SimpleNamespace(candidate=SimpleNamespace(reference=""))

    with pytest.raises(NotApplicable, match="registered by the program"):
        contract.test_import_opens_nothing(subject)
    assert isinstance(Subject("PYTHON").candidate.reference, str)
