"""Choice of slow tests: those marked so, and all but a sample of the large grids of cases
(`tests/support/sampling.py`).

README's second command leaves them out by `-m "not slow"`; `.ci/run` runs them by `-m slow`.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

import pytest
from sampling import leave_out, mark_slow

# Support packages that are younger than somebody's environment are found in the tree, and by the
# processes that tests start.
for package in ("tiny_hcq", "tiny_mpi", "tiny_ray", "tiny_testing"):
    if find_spec(package) is None:
        source = str(Path(__file__).parent / "plugins" / package / "src")
        sys.path.append(source)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (os.environ.get("PYTHONPATH"), source))
        )

# Bytecode is kept even where the environment says not to (images of containers do): else each of
# hundreds of processes that tests start, and each run of pytest, compiles every file once more.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Workers fill the processor; threads of PyTorch beside them would spin while they wait.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of a sample of all tests."""
    parser.addoption(
        "--one-in", type=int, default=1, metavar="N", help="run a sample: one test of N"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collection: modules and tests live to the end, and going
    through them again and again takes a third of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow what samples leave out."""
    mark_slow(items)
    leave_out(config, items, set(items) - sample(items, config.getoption("--one-in")))


def sample(items: list[pytest.Item], every: int) -> set[pytest.Item]:
    """One test of so many, and at least one of the slow ones and one of the others."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    chosen = {item for item in items if crc32(item.nodeid.encode()) % every == 0}
    return chosen.union(*(group[:1] for group in (slow, quick) if chosen.isdisjoint(group)))


def pytest_collection_finish() -> None:
    """Thousands of tests and their modules need not be gone through by each `gc.collect()`."""
    leave_alone_what_lives()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Nor need what the tests of a file leave in caches."""
    is_run = yield
    if nextitem is None or nextitem.path != item.path:
        leave_alone_what_lives()
    return is_run


def leave_alone_what_lives() -> None:
    """Have the collector look at what is made from now on only."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random numbers of a test are the same in each run."""
    if (loaded := sys.modules.get("tinycore.tensor.methods.stream")) is not None:
        loaded.stream.seed(0)


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also in a run that a shell put into the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
