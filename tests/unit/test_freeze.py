"""The record of what benchmark cases do: what counts as worse, and one case from end to end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # last: what is installed comes first

from benchmarks.case import Case, Kind  # noqa: E402
from benchmarks.cases import CASES  # noqa: E402
from benchmarks.freeze import RECORD, counted, differences, plans  # noqa: E402
from benchmarks.python_cost import CASES as CALLS  # noqa: E402

BEFORE: dict[str, dict[str, dict[str, Any]]] = {
    "cases": {"product": {"launches": 2, "bytes": 100, "peak": 50}},
    "plans": {"avx2/product.txt": {"launches": 2, "bytes": 100, "text": "a"}},
    "python": {"call": {"bytecodes": 1000, "microseconds": 10.0}},
}


@pytest.mark.parametrize(
    ("part", "name", "change", "expected"),
    [
        ("cases", "product", {}, []),
        ("cases", "product", {"peak": 51}, [(True, "cases | product | peak | 50 | 51 | 1.020")]),
        ("cases", "product", {"launches": 1},
         [(False, "cases | product | launches | 2 | 1 | 0.500")]),
        ("python", "call", {"microseconds": 90.0}, []),
        ("python", "call", {"bytecodes": 1020},
         [(False, "python | call | bytecodes | 1,000 | 1,020 | 1.020")]),
        ("python", "call", {"bytecodes": 1040},
         [(True, "python | call | bytecodes | 1,000 | 1,040 | 1.040")]),
        ("plans", "avx2/product.txt", {"text": "b"},
         [(False, "plans | avx2/product.txt | text | a | b")]),
    ],
)  # fmt: skip
def test_more_is_worse(
    part: str, name: str, change: dict[str, Any], expected: list[tuple[bool, str]]
) -> None:
    now = {**BEFORE, part: {name: {**BEFORE[part][name], **change}}}

    assert list(differences(BEFORE, now)) == expected


def test_a_row_that_is_gone_is_worse_and_a_new_one_is_told() -> None:
    now = {**BEFORE, "cases": {"sum": {"launches": 1, "bytes": 1, "peak": 1}}}

    assert list(differences(BEFORE, now)) == [
        (False, "cases | sum | is new"),
        (True, "cases | product | is gone"),
    ]


def test_the_record_has_every_case() -> None:
    record = json.loads(RECORD.read_text("utf-8"))
    computing = [c.name for c in CASES if isinstance(c, Case) and c.kind is not Kind.TOOL]

    assert record["cases"].keys() == {
        f"{n}, {way}" for n in computing for way in ("plain", "TinyJit")
    }
    assert record["python"].keys() == CALLS.keys()
    assert record["plans"].keys() == plans().keys()


@pytest.mark.slow
def test_a_case_is_counted_as_recorded() -> None:
    record = json.loads(RECORD.read_text("utf-8"))["cases"]
    found = counted("^matmul 1000$")

    assert found.keys() == {"matmul 1000, plain", "matmul 1000, TinyJit"}
    assert found == {name: record[name] for name in found}
