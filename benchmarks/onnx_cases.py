"""Cases of the `onnx` package that tiny_onnx, onnxruntime and tinygrad pass, as a table.

    python -m benchmarks.onnx_cases [KIND ...]

Operators with inputs and outputs, the same spelled out by functions of the standard, and models of
several frameworks. A runtime refuses a case where it cannot load or call the model, and fails it
where the outputs differ. tiny_onnx is called four times, so that it is built, captured, replayed.
tinygrad is left out where it or its compiler is not installed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy
import onnx
import onnxruntime
from onnx.backend.test.case.test_case import TestCase
from tqdm import tqdm

sys.path.append(str(Path(__file__).parents[1] / "plugins/tiny_onnx/tests"))
import backend_cases
from backend_cases import EXCLUDED, Run, check

from benchmarks.peers import find_clang, why_absent

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


def in_tinygrad(model: onnx.ModelProto) -> Run:
    """A model as the ONNX runner of tinygrad runs it on the processor."""
    runner = importlib.import_module("tinygrad.nn.onnx").OnnxRunner
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        file.write(model.SerializeToString())
        file.flush()
        found = runner(file.name)

    def on_host(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [on_host(each) for each in value]
        return value.numpy() if hasattr(value, "numpy") else value

    def run(given: Mapping[str, Any]) -> list[Any]:
        arrays = {  # a scalar of NumPy is refused where it is no array
            name: numpy.asarray(each) if isinstance(each, numpy.generic) else each
            for name, each in given.items()
        }
        return [on_host(each) for each in found(arrays).values()]

    return run


class Runtime(NamedTuple):
    """A runtime, and how often it is called."""

    name: str
    prepare: Prepare
    calls: int


RUNTIMES: Final = (
    Runtime("tiny-onnx", backend_cases.runner, 4),
    Runtime("onnxruntime", session, 1),
    *([] if why_absent("tinygrad") else [Runtime("tinygrad", in_tinygrad, 1)]),
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
    os.environ |= {"DEV": "CPU", "CC": find_clang()}  # which tinygrad reads
    warnings.simplefilter("ignore")
    titles = [
        f"{each.name} {found}" for each in RUNTIMES for found in ("passed", "failed", "refused")
    ]
    names = ["onnx", *(each.name for each in RUNTIMES[1:])]
    versions = {name: importlib.metadata.version(name) for name in names}
    print(f"{versions}, excluded as they draw random numbers: {len(EXCLUDED)}")
    print("| " + " | ".join(["kind", "cases", *titles]) + " |")
    print("|---|" + "--:|" * (1 + len(titles)))
    for row in rows(kinds):
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or by_kind())
