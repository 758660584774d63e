"""docs/write-a-backend-in-c.md and write-a-queue-backend.md: their devices compute and conform."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tiny_testing.suite.case import Level, Trial, trials
from tiny_testing.suite.judge import Skips, Verdict
from tiny_testing.suite.run import run_here
from tiny_testing.suite.subject import Subject
from tinycore import Device, Tensor
from tinycore.errors import CompilerUnavailable, DeviceError
from tinycore.plugin import Backend, unregister

ROOT = Path(__file__).parents[3]
SCAFFOLD = ROOT / "plugins/tiny_testing/src/tiny_testing/scaffold/src"


def blocks(page: str) -> list[str]:
    """The Python of a page."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


IN_C = blocks("write-a-backend-in-c.md")
QUEUES = blocks("write-a-queue-backend.md")

SAMPLE = ("ADD", "IDIV", "SHR", "BITCAST", "float32-int32", "movement", "reduction[ADD")
"""Parts of the names of the trials of level 2 that are run here; the packages run them all."""


@pytest.fixture(scope="module")
def pages() -> Iterator[dict[str, Any]]:
    """Names that both pages define, with their devices registered; their last blocks compute."""
    scope: dict[str, Any] = {"__name__": "pages"}
    exec("\n".join(IN_C[:3]), scope)
    try:
        scope["c_compiler"]()
    except CompilerUnavailable as error:
        pytest.skip(str(error))
    exec("\n".join([*IN_C[3:], *QUEUES]), scope)
    yield scope
    unregister("CEE")
    unregister("QUEUED")


def chosen(backend: Backend, highest: Level) -> list[Trial]:
    return [
        trial for trial in trials(highest)
        if trial.needs <= backend.capabilities
        and (trial.case.level != Level.COMPUTE or any(word in trial.name for word in SAMPLE))
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "highest", "least"), [("BACKEND", Level.COMPUTE, 100), ("QUEUED", Level.ORDER, 120)]
)
def test_the_device_of_a_page_proves_its_claims(
    pages: dict[str, Any], name: str, highest: Level, least: int
) -> None:
    backend = pages[name]
    results = list(run_here(Subject(backend.name, Skips()), chosen(backend, highest)))

    assert len(results) > least
    assert [r.name for r in results if r.judgement.verdict is Verdict.FAILED] == []


def code(source: str) -> list[str]:
    """The lines of a source without imports, empty ones, and the docstring of a module."""
    lines = source.splitlines()
    return [
        line for line in lines
        if line and not re.match(r"(from [\w@.]+ )?import |\"\"\"(The device|C for) ", line)
    ]  # fmt: skip


def test_the_pages_are_what_new_packages_have(pages: dict[str, Any]) -> None:
    texts = {path.name: path.read_text("utf-8") for path in SCAFFOLD.iterdir()}
    queued = "\n".join(QUEUES[:4]).replace("QUEUED:{index}", "@NAME@:{index}")

    assert code(texts["c.py.txt"]) == code("\n".join(IN_C[:5]))
    assert code(texts["device_in_c.py.txt"]) == code(IN_C[5])
    assert code(texts["device_with_queues.py.txt"]) == code(queued)


def test_a_fault_of_the_engine_loses_the_device_with_its_reason(pages: dict[str, Any]) -> None:
    x = Tensor([1.0, 2.0], device="QUEUED").realize()
    runtime: Any = Device["QUEUED"].runtime
    runtime.engines[0].given.put([99])

    with pytest.raises(DeviceError, match="TypeError"):
        (x + 1).tolist()
    Device.close("QUEUED")
    assert (Tensor([1.0, 2.0], device="QUEUED") + 1).tolist() == [2, 3]
