"""docs/write-a-backend.md: its code is a device of less than a hundred lines, and conforms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from tiny_testing.suite.case import Level, trials
from tiny_testing.suite.judge import Verdict
from tiny_testing.suite.run import run_here
from tiny_testing.suite.subject import Subject
from tinycore import Context, Device, Tensor
from tinycore.plugin import unregister

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/write-a-backend.md"
TEMPLATE = ROOT / "plugins/tiny_testing/src/tiny_testing/scaffold/src/device.py.txt"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
DEVICE_BLOCKS, DECLARATION, USE, AUTHORS_FILE = BLOCKS[:7], *BLOCKS[7:]

SAMPLE = ("ADD", "IDIV", "SHR", "WHERE", "SQRT", "float32-int32", "movement", "reduction[ADD")
"""Parts of the names of the trials of level 2 that are run here; the package runs them all."""


def code_lines(source: str) -> list[str]:
    """The lines of a source that are neither empty, nor comments, nor docstrings."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return [
        line for number, line in enumerate(source.splitlines(), 1)
        if line.strip() and number not in prose and not line.strip().startswith("#")
    ]  # fmt: skip


@pytest.fixture(scope="module")
def page() -> Iterator[dict[str, Any]]:
    """Names that the page defines, with its device registered."""
    scope: dict[str, Any] = {"__name__": "page"}
    exec("\n".join([*DEVICE_BLOCKS, DECLARATION, USE]), scope)
    with Context(DEV="TOY"):
        yield scope
    unregister("TOY")


def test_a_complete_device_in_less_than_a_hundred_lines() -> None:
    assert len(code_lines("\n".join([*DEVICE_BLOCKS, DECLARATION]))) < 100


def test_the_page_is_what_the_new_package_has() -> None:
    def squeezed(text: str) -> str:
        return re.sub(r"\n+", "\n", text).strip()

    template = TEMPLATE.read_text("utf-8").replace("@NAME@", "TOY")
    assert squeezed("\n".join(DEVICE_BLOCKS)) == squeezed(template)


@pytest.mark.slow
def test_the_device_of_the_page_proves_its_claims(page: dict[str, Any]) -> None:
    scope: dict[str, Any] = {}
    exec(AUTHORS_FILE, scope)
    claims = page["BACKEND"].capabilities
    chosen = [
        trial for trial in trials(Level.COMPUTE)
        if trial.needs <= claims
        and (trial.case.level < Level.COMPUTE or any(word in trial.name for word in SAMPLE))
    ]  # fmt: skip
    results = list(run_here(Subject(scope["DEVICE"], scope["SKIPS"]), chosen))

    assert len(results) > 80
    assert [r.name for r in results if r.judgement.verdict is Verdict.FAILED] == []


@pytest.mark.usefixtures("page")
def test_matrices_padding_and_softmax() -> None:
    a, b = numpy.arange(6.0).reshape(2, 3), numpy.arange(12.0).reshape(3, 4) / 5
    product = Tensor(a.astype(numpy.float32)) @ Tensor(b.astype(numpy.float32))

    assert Device.DEFAULT == product.device == "TOY"
    assert numpy.allclose(product.numpy(), a @ b, atol=1e-5)
    assert Tensor([1.0, 2.0]).pad(((1, 1),)).tolist() == [0, 1, 2, 0]
    assert Tensor([1.0, 1.0]).softmax().tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.usefixtures("page")
def test_gradients_and_copies_to_another_device() -> None:
    x = Tensor([3.0, 4.0])
    (x * x).sum().backward()

    assert x.grad is not None
    assert x.grad.to("PYTHON").tolist() == [6, 8]
