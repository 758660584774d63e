"""Targets of these tests of tensors: those that are here, of those that a rule names.

TENSOR_TESTS=CPU:LLVM,PYTHON chooses; the word `reference` stands for the plain evaluator of graphs.
`nox -s tensors` runs all of them on one target, which takes long where a driver compiles slowly.
Each case is fast on one target at most (`tests/support/sampling.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

import pytest
from sampling import leave_out

from tests.conftest import absence
from tiny_testing.reference import ReferenceRuntime
from tinycore import Context, Device
from tinycore.dtype import dtypes
from tinycore.errors import DeviceUnavailable, UnsupportedError
from tinycore.tensor import runtime

CLANG: Final = "CPU:CLANG"
COMPOSED: Final = ("CPU:LLVM", "PYTHON")
USUAL: Final = (CLANG, *COMPOSED)
ALL: Final = (*USUAL, "CL", "WEBGPU")


@dataclass(frozen=True)
class Rule:
    """Targets of the tests of some files, and of how many cases one is fast.

    TENSOR_TESTS overrides both, and a mark `sample` of a test its number.
    """

    targets: tuple[str, ...]
    one_in: int
    names: str
    """Names of files, without `test_`."""


RULES: Final = (
    # Drivers that compile slowly run few files.
    Rule(ALL, 1, "interop"),
    Rule((*USUAL, "CL"), 1, "variables"),
    Rule((*USUAL, "WEBGPU"), 1, "jit movement"),
    # What graphs and compositions of functions add to the kernels of other files is no renderer's.
    Rule(
        COMPOSED,
        1,
        "adjoint aliases aliasing aliasing_table backward chain check_gradients equal_values grad "
        "history "
        "jit_around jit_beside jit_guards jit_state jit_threads jit_unseen linear_systems mistakes "
        "multi_memory names no_views peer_names printing spelling templates "
        "held_values held_values_memory",
    ),
    Rule(USUAL, 3, "indexing random semantics sizes small_floats"),
    # The dearest grids.
    Rule(COMPOSED, 6, "decompositions"),
    Rule(
        USUAL,
        6,
        "attention composed edges elementwise grid_elementwise grid_indexing grid_linalg "
        "grid_movement grid_reduce grid_windows layers linalg losses lr_scheduler optim recurrent "
        "reduce scatter sorting windows",
    ),
)
"""By files, here and in tests/unit/nn; other files run on all that is `USUAL`."""

RULE_OF: Final = {f"test_{name}.py": rule for rule in RULES for name in rule.names.split()}
OTHERS: Final = Rule(USUAL, 1, "")

EVERY: Final = {CLANG: 12, "PYTHON": 3, "CL": 2, "WEBGPU": 2}
"""Sampling rates of slow tests that CPU:LLVM runs too: one in so many runs on a target. With a
process per kernel they take longer on CPU:CLANG than on all other targets together; plans are those
of CPU:LLVM, and plugins/tiny_cpu/tests has every operation on every type through both compilers.
Compositions, which COMPOSED targets run, take turns: a slow one runs on either. What is between
devices runs on ALL.
"""

os.environ.setdefault("OPENCL_BUILD_OPTIONS", "-cl-opt-disable")  # what is tested runs once


@pytest.fixture
def subnormals_kept() -> Iterator[None]:
    """For tests that are exact below the normal range, where kernels of a CPU flush by default."""
    with Context(FLUSH_SUBNORMALS=0):
        yield


def asked() -> list[str]:
    """The targets that TENSOR_TESTS names."""
    return [target for target in os.environ.get("TENSOR_TESTS", "").split(",") if target]


def chosen() -> list[str]:
    """All targets that are here or asked for."""
    return asked() or [target for target in ALL if not absence(target)]


HERE: Final = chosen()
FOLDERS: Final = (Path(__file__).parent, Path(__file__).parents[1] / "nn")


def targets_of(name: str) -> list[str]:
    """Targets of the tests of a file."""
    return [target for target in HERE if asked() or target in RULE_OF.get(name, OTHERS).targets]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on the targets of its file."""
    run_on(metafunc, targets_of(metafunc.definition.path.name))


def run_on(metafunc: pytest.Metafunc, targets: list[str]) -> None:
    """Run a test on targets, unless it has a parameter or a fixture of its own of this name."""
    test = metafunc.definition
    parameters = (str(mark.args[0]) for mark in test.iter_markers("parametrize"))
    is_named = any(re.search(r"\btarget\b", names) for names in parameters)
    if is_named or "target" in vars(metafunc.module):
        return
    one_in = RULE_OF.get(test.path.name, OTHERS).one_in
    is_bare = not asked() and test.get_closest_marker("sample") is None
    marks = [pytest.mark.sample(one_in)] if is_bare else []
    params = [pytest.param(name, marks=[pytest.mark.target(name), *marks]) for name in targets]
    metafunc.parametrize("target", params, indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what targets leave to others."""
    leave_out(config, items, {item for item in items if is_repeated(item)})


def is_repeated(item: pytest.Item) -> bool:
    """True if a target leaves a slow test of tensors or layers to another one."""
    mark = item.get_closest_marker("target")
    if mark is None or asked() or item.path.parent not in FOLDERS or not set(COMPOSED) <= {*HERE}:
        return False
    if item.get_closest_marker("slow") is None:
        return False
    target = str(mark.args[0])
    place = crc32(item.nodeid.replace(target, "", 1).encode())
    targets = RULE_OF.get(item.path.name, OTHERS).targets
    if targets == COMPOSED:
        return COMPOSED[place % 2] != target
    return (targets != ALL or target == CLANG) and place % EVERY.get(target, 1) != 0


@pytest.fixture(autouse=True)
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on one target."""
    if request.param == "reference":
        if request.path.name == "test_jit.py":
            pytest.skip("the evaluator has no launches to capture")
        before = runtime.Holder.active
        runtime.use(ReferenceRuntime())
        yield "reference"
        runtime.Holder.active = before
    else:
        with Context(DEV=request.param):
            yield request.param


def is_lacking(target: str, error: UnsupportedError) -> bool:
    """True if a device refused a kernel for a dtype that its backend does not claim, or for what a
    driver in software does to it.
    """
    if "and this driver ends them after" in str(error):
        return True
    claimed = Device.backend(target.partition(":")[0]).capabilities
    lacking = [dtype.name for dtype in dtypes.all if dtype.name not in claimed]
    return any(f"has no {name}," in str(error) for name in lacking)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Skip what a target lacks, and says so: a dtype, a driver that does it, a second device."""
    try:
        return (yield)
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    except UnsupportedError as error:
        assert isinstance(item, pytest.Function)
        target = str(item.callspec.params["target"])
        if target == "reference" or not is_lacking(target, error):
            raise
        pytest.skip(str(error).partition(",")[0])
