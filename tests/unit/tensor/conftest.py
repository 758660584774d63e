"""Where the tensors of these tests run: on every target that is here.

TENSOR_TESTS=CPU:LLVM,PYTHON chooses; the word `reference` stands for the plain evaluator of graphs.
`nox -s tensors` runs all of them on one target, which takes long where a driver compiles slowly.
Each test is marked as slow on all of its targets but one, which SHARES chooses; five of seven
cases of GRIDS on all.
"""

from __future__ import annotations

import os
import zlib
from bisect import bisect
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import pytest

from tests.conftest import absence
from tinycore import Context, Device
from tinycore.dtype import dtypes
from tinycore.errors import DeviceUnavailable, UnsupportedError
from tinycore.tensor import runtime
from tinycore.testing.reference import ReferenceRuntime

ALL = ("CPU:CLANG", "CPU:LLVM", "PYTHON", "CL", "WEBGPU")

SAMPLED = {
    "CL": frozenset({"test_interop.py", "test_variables.py"}),
    "WEBGPU": frozenset({"test_interop.py", "test_jit.py", "test_movement.py"}),
}
"""Files that run by default on targets whose drivers compile slowly; TENSOR_TESTS runs them all."""

SAME_EVERYWHERE = frozenset(
    f"test_{name}.py"
    for name in (
        "adjoint aliases aliasing aliasing_table backward chain check_gradients decompositions "
        "grad history jit_around jit_guards jit_state linear_systems mistakes multi_memory names "
        "no_views peer_names printing spelling value_cache value_cache_memory"
    ).split()
)
ANYWHERE = frozenset({"PYTHON", "CPU:LLVM"})
"""Files about graphs, or about functions composed of others, and where they run unless TENSOR_TESTS
asks for more: what they add to the kernels of other files is no renderer's or compiler's."""

CLANG = "CPU:CLANG"
EVERY = 3
"""Of the tests that are slow on CPU:CLANG one in so many runs on it: with a process per kernel they
take longer than on all other targets together. Plans are those of CPU:LLVM, and
plugins/tiny_cpu/tests has every operation on every type through both compilers.
"""

GRIDS = frozenset(
    f"test_{name}.py"
    for name in (
        "attention composed decompositions edges elementwise grid_elementwise grid_indexing "
        "grid_linalg grid_movement grid_reduce grid_windows layers linalg losses lr_scheduler "
        "optim recurrent reduce scatter sorting windows"
    ).split()
)
"""Files with the dearest grids of cases, here and in tests/unit/nn: five of seven cases are slow on
every target, unless TENSOR_TESTS asks for one."""

SHARES = {"CPU:LLVM": 8, "PYTHON": 7, "CPU:CLANG": 1, "CL": 1, "WEBGPU": 1}
"""How often a target is the one that a test is not slow on. CPU:CLANG takes the most time for it,
PYTHON the least; CPU:LLVM is what the most programs run on.
"""

os.environ.setdefault("OPENCL_BUILD_OPTIONS", "-cl-opt-disable")  # what is tested runs once


def chosen() -> list[str]:
    asked = os.environ.get("TENSOR_TESTS")
    return asked.split(",") if asked else [target for target in ALL if not absence(target)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a slow target runs only when it is asked for."""
    leave_out(config, items, [item for item in items if not is_sampled(item)])
    mark_other_targets(items, Path(__file__).parent)
    leave_out(config, items, [item for item in items if is_repeated(item)])


def leave_out(config: pytest.Config, items: list[pytest.Item], gone: list[pytest.Item]) -> None:
    """Remove some tests."""
    if gone:
        config.hook.pytest_deselected(items=gone)
        left = set(items).difference(gone)
        items[:] = [item for item in items if item in left]


def mark_other_targets(items: Iterable[pytest.Item], folder: Path) -> None:
    """Mark the tests of a folder as slow on all targets but one, which their names decide."""
    alike: dict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        if item.path.parent != folder or not hasattr(item, "callspec"):
            continue
        target = item.callspec.params.get("target")
        if isinstance(target, str):  # else the test has a parameter of its own of this name
            alike[item.nodeid.replace(target, "")][target] = item
    for name, by_target in alike.items():
        fast = chosen_of(name, list(by_target))
        for target, item in by_target.items():
            if target != fast or is_left_to_slow(item, name):
                item.add_marker("slow")


def chosen_of(name: str, targets: Sequence[str]) -> str:
    """The target on which a test is fast."""
    ends = list(accumulate(SHARES.get(target, 1) for target in targets))
    return targets[bisect(ends, zlib.crc32(name.encode()) % ends[-1])]


def is_left_to_slow(item: pytest.Item, name: str) -> bool:
    """Whether a case of a grid is slow on all targets."""
    if os.environ.get("TENSOR_TESTS") or item.path.name not in GRIDS:
        return False
    return zlib.crc32(name.encode()) % 7 < 5  # an odd number: SHARES add up to a power of two


def is_sampled(item: pytest.Item) -> bool:
    """Whether a test runs on its target unasked."""
    asked = os.environ.get("TENSOR_TESTS")
    if asked or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return True
    target = str(item.callspec.params.get("target"))
    if item.path.name in SAME_EVERYWHERE:
        return target in ANYWHERE
    files = SAMPLED.get(target)
    return files is None or item.path.name in files


def is_repeated(item: pytest.Item) -> bool:
    """Whether CPU:CLANG leaves a test of this folder to other targets."""
    if os.environ.get("TENSOR_TESTS") or item.get_closest_marker("slow") is None:
        return False
    if item.path.parent != Path(__file__).parent or not hasattr(item, "callspec"):
        return False
    target = item.callspec.params.get("target")
    return bool(target == CLANG) and zlib.crc32(item.nodeid.encode()) % EVERY != 0


@pytest.fixture(autouse=True, params=chosen())
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
    """Whether a device refused a kernel for a dtype that its backend does not claim, or for what a
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
