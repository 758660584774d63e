"""Devices of the arrays of these tests, and the report on the standard's functions.

The defaults are 64 bits wide, as those of the namespace they are compared with.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest

from tests.unit.tensor.conftest import chosen
from tinycore import Context

TARGETS = chosen()
COMPILED = [target for target in TARGETS if target != "PYTHON"]
FULL = "CPU:LLVM" if "CPU:LLVM" in COMPILED else (COMPILED or TARGETS)[0]
"""Device that runs every case; the interpreter runs one of each function."""

BEHAVIOR = {"test_elementwise.py", "test_functions.py"}
"""Files in which functions are run and not only looked up."""

passed: dict[str, bool] = {}
"""True if all tests of a function passed, of those that ran."""


@pytest.fixture(autouse=True)
def on_target(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run on FULL, or where the parameter `target` says."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    place = parameters.get("target", FULL)
    with Context(DEV=place, DEFAULT_FLOAT="float64", DEFAULT_INT="int64"):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note the outcome of tests of one function."""
    report = yield
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    name = parameters.get("name") if item.path.name in BEHAVIOR else None
    if report.when == "call" and name:
        passed[name] = passed.get(name, True) and report.passed
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many of the standard's functions passed, and which did not or are left out."""
    from tests.unit.array_api.standard import FUNCTIONS  # noqa: PLC0415
    from tests.unit.array_api.table import reason  # noqa: PLC0415

    if not passed:
        return
    names = list(FUNCTIONS)
    good = [name for name in names if passed.get(name) and reason(name) is None]
    out = [name for name in names if reason(name) is not None]
    bad = [name for name in names if passed.get(name) is False]
    counts = f"{len(good)} passed, {len(bad)} failed, {len(out)} are left out"
    terminalreporter.section("array API standard")
    terminalreporter.line(f"Of {len(names)} functions {counts}: {', '.join(out)}.")
    if bad:
        terminalreporter.line(f"Failed: {', '.join(bad)}.")
