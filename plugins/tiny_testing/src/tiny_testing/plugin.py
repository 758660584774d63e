"""The conformance suite under pytest: `pytest -p tiny_testing.plugin --device CPU`.

Never loaded by itself: an author names it, on the command line or in `addopts`. It gives
the suite's functions their device and their variants, and judges what they do by what the device
claims. pytest runs everything in one process, so a crash there ends the run; the command line
survives it.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from tiny_testing.suite.case import Case, Level, Trial
from tiny_testing.suite.judge import Outcome, Skips, Verdict
from tiny_testing.suite.report import Report
from tiny_testing.suite.run import run_one
from tiny_testing.suite.subject import Subject
from tinycore.device.registry import Device

reports = pytest.StashKey[dict[str, Report]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's options."""
    group = parser.getgroup("tinycore", "conformance of a tinycore device")
    group.addoption("--device", default="", help="the device to test, instead of the file's DEVICE")
    group.addoption(
        "--level", type=int, default=int(Level.MODELS), help="the highest level of the suite"
    )
    group.addoption("--conformance-json", type=Path, help="write what came of the suite")


def pytest_configure(config: pytest.Config) -> None:
    """Begin with no reports."""
    config.stash[reports] = {}


def case_of(function: object) -> Case | None:
    """The case of the suite that a test function is, if it is one."""
    found = getattr(function, "conformance", None)
    return found if isinstance(found, Case) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a case each of its variants, and its device."""
    case = case_of(metafunc.function)
    if case is None:
        return
    names = [name for name in inspect.signature(metafunc.function).parameters if name != "subject"]
    if case.variants:
        metafunc.parametrize(names[-1:], [[v.value] for v in case.variants],
                             ids=[v.name for v in case.variants])  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases above the requested level."""
    highest = config.getoption("--level")
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        case = case_of(getattr(item, "function", None))
        (left if case is not None and case.level > highest else kept).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest) -> Subject:
    """The device under test: that of --device, else the module's DEVICE, else the default one."""
    module = request.module
    target = request.config.getoption("--device") or getattr(module, "DEVICE", "")
    target = target or Device.DEFAULT
    found = Subject(
        target, getattr(module, "SKIPS", Skips()), getattr(module, "external_memory", None)
    )
    known = request.config.stash[reports]
    known.setdefault(str(found.target), Report(found, request.config.getoption("--level")))
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a case, and report what its outcome means by what the device claims."""
    case = case_of(pyfuncitem.function)
    if case is None:
        return None
    found = pyfuncitem.funcargs["subject"]
    assert isinstance(found, Subject)
    name = pyfuncitem.callspec.id if hasattr(pyfuncitem, "callspec") else ""
    variant = next((v for v in case.variants if v.name == name), None)
    result = run_one(Trial(case, variant), found)
    pyfuncitem.config.stash[reports][str(found.target)].add(result)
    if result.judgement.verdict is Verdict.FAILED:
        pytest.fail(result.judgement.reason, pytrace=False)
    if result.outcome is not Outcome.PASSED:
        pytest.skip(result.judgement.reason.partition("\n")[0])
    return True


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print what was proven, what works without being claimed, and how fast it was."""
    for target, report in config.stash[reports].items():
        terminalreporter.section(f"conformance of {target}")
        for line in report.summary():
            terminalreporter.write_line(line)
        for result in report.results:
            if result.figure:
                terminalreporter.write_line(f"  {result.name}: {result.figure}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the requested JSON file, by device."""
    path = session.config.getoption("--conformance-json")
    if path:
        found = {name: r.to_json() for name, r in session.config.stash[reports].items()}
        path.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
