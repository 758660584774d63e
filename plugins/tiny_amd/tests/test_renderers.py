"""Trials that LLVM IR and HIP must both pass: arguments, launches, shared memory, lanes.

Faults of the renderers show here first, see `renderer_faults.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy
import pytest

pytest.importorskip("llvmlite")
pytest.importorskip("ziglang")

from hip_by_clang import of_hip_by_clang
from kfd_standin import Machine
from kfd_standin.cards import NAVI31
from renderer_faults import FAULTS, SOURCES
from simulated_amd import backend_of
from trials import run_trial

from tiny_testing.kernels import element, load, store
from tiny_testing.suite import Subject
from tiny_testing.suite.case import Level, Trial, trials
from tinycore.dtype import dtypes
from tinycore.plugin import register, unregister
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

NAMES: Final = (
    "test_variables_are_passed_by_name",
    "test_buffers_that_are_not_used",
    "test_the_axes_of_a_launch",
    "test_a_barrier_orders_a_group",
    "test_all_of_shared_memory",
    "test_threads_have_arrays",
    "test_special_values[float32]",
    "test_shifts_by_every_amount[int64]",
    "test_an_operation[TRUNC-float32]",
    "test_an_operation[MUL-bfloat16]",
    "test_a_cast[float64-float16]",
    "test_a_cast_in_lanes[float32-uint16]",
    "test_operands_in_shared_memory[float32-100x33x129]",
    "test_shared_memory_is_filled_ahead[float32-2]",
    "test_a_launch_has_the_groups_of_its_value",
)
CHOSEN: Final = {t.name: t for t in trials(Level.COMPUTE) if t.name in NAMES}


@pytest.fixture(scope="module", params=["LLVM", "HIP"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """A card whose kernels are in one language."""
    made = backend_of(Machine((NAVI31,)))
    register(of_hip_by_clang(made) if request.param == "HIP" else made)
    found = Subject(f"AMD:{request.param}")
    with found.chosen():
        yield found
    unregister("AMD")


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", NAMES)
def test_a_trial_passes(name: str, subject: Subject) -> None:
    trial: Trial = CHOSEN[name]
    run_trial(trial, subject)


def test_neighbors_that_are_not_used_take_the_place_of_pointers(subject: Subject) -> None:
    counter = UOp.range(20, 0)
    value = load(element(3, dtypes.int32, 20, counter), dtypes.int32) + 5
    stored = store(element(0, dtypes.int32, 20, counter), value)
    body = UOp.sink(UOp(Op.END, dtypes.void, (stored, counter)))
    x, unused = numpy.arange(20, dtype="i"), numpy.zeros(4, "i")

    found = subject.bench.run(body, numpy.zeros(20, "i"), unused, unused, x)

    assert found[0].tolist() == (x + 5).tolist()


def test_each_seeded_fault_changes_one_text() -> None:
    """The table of `renderer_faults.py`, which is run by hand, does not rot."""
    found = [(SOURCES / name).read_text("utf-8").count(old) for name, old, _ in FAULTS]
    assert found == [1] * len(FAULTS)
