"""Cases of the `onnx` package that tiny_onnx and onnxruntime pass, as a table.

    python -m benchmarks.onnx_cases [KIND ...]

Operators with inputs and outputs, the same spelled out by functions of the standard, and models of
several frameworks. A runtime refuses a case where it cannot load or call the model, and fails it
where the outputs differ. tiny_onnx is called four times, so that it is built, captured, replayed.
"""

from __future__ import annotations

import importlib.metadata
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import onnx
import onnxruntime
from onnx.backend.test.case.test_case import TestCase
from tqdm import tqdm

sys.path.append(str(Path(__file__).parents[1] / "plugins/tiny_onnx/tests"))
import backend_cases
from backend_cases import EXCLUDED, Run, check

__all__ = ["main"]

Prepare = Callable[[onnx.ModelProto], Run]


def session(model: onnx.ModelProto) -> Run:
    """A model as onnxruntime's CPU provider runs it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    content = model.SerializeToString()
    found = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(given: Mapping[str, Any]) -> list[Any]:
        results: list[Any] = found.run(None, dict(given))
        return results

    return run


class Runtime(NamedTuple):
    """A runtime, and how often it is called."""

    name: str
    prepare: Prepare
    calls: int


RUNTIMES: Final = (
    Runtime("tiny-onnx", backend_cases.runner, 4),
    Runtime("onnxruntime", session, 1),
)


def by_kind() -> dict[str, dict[str, TestCase]]:
    """Cases by kind and name."""
    found: dict[str, dict[str, TestCase]] = {"operators": backend_cases.cases()}
    found["operators by functions"] = {
        name: case for name, case in backend_cases.operators().items() if "_expanded" in name
    }
    for name, case in backend_cases.stored().items():
        kind, _, rest = name.partition("/")
        found.setdefault(kind, {})[rest] = case
    return found


def verdict(runtime: Runtime, case: TestCase) -> str:
    """passed, failed or refused."""
    try:
        check(case, runtime.calls, runtime.prepare)
    except AssertionError:
        return "failed"
    except Exception:
        return "refused"
    return "passed"


def rows(kinds: Iterable[str]) -> Iterable[tuple[str, ...]]:
    """A row for each kind; cases that tiny_onnx does not pass are named beside the table."""
    for kind in kinds:
        cases = by_kind()[kind]
        counts = {runtime.name: Counter[str]() for runtime in RUNTIMES}
        for name, case in tqdm(cases.items(), desc=kind, leave=False):
            for runtime in RUNTIMES:
                found = verdict(runtime, case)
                counts[runtime.name][found] += 1
                if found != "passed" and runtime is RUNTIMES[0]:
                    tqdm.write(f"{found}: {kind} {name}", file=sys.stderr)
        yield (
            kind,
            str(len(cases)),
            *(
                str(counts[runtime.name][found])
                for runtime in RUNTIMES
                for found in ("passed", "failed", "refused")
            ),
        )


def main(kinds: Iterable[str]) -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    titles = [
        f"{each.name} {found}" for each in RUNTIMES for found in ("passed", "failed", "refused")
    ]
    versions = {name: importlib.metadata.version(name) for name in ("onnx", "onnxruntime")}
    print(f"{versions}, excluded as they draw random numbers: {len(EXCLUDED)}")
    print("| " + " | ".join(["kind", "cases", *titles]) + " |")
    print("|---|" + "--:|" * (1 + len(titles)))
    for row in rows(kinds):
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or by_kind())
