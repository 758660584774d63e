"""Random programs of views and writes against the model, NumPy and torch: a few here, any number
by `python -m tests.fuzz.writes`."""

from __future__ import annotations

import hashlib

import pytest

from tests.fuzz.places import Places
from tests.fuzz.runner import smallest
from tests.fuzz.writes import Program, check, program, script, smaller
from tinycore import Context, Tensor

PER_PART = 20


@pytest.mark.sample(6)
@pytest.mark.parametrize("part", range(4))
def test_what_programs_read_is_what_the_model_says(part: int) -> None:
    with Context(DEV="PYTHON", PARALLEL=1):
        for seed in range(part * PER_PART, (part + 1) * PER_PART):
            found = program(seed)
            failure = check(found)
            assert not failure.kind, script(found, failure)


DIGEST = "17491de8027f2b07"
"""Digest of the first programs; a change of the generator changes it."""


def test_a_seed_makes_the_same_program_everywhere() -> None:
    lines = [line for seed in range(60) for line in program(seed).lines]

    assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == DIGEST


def test_every_kind_of_line_is_made() -> None:
    text = "\n".join(line for seed in range(150) for line in program(seed).lines)

    for part in (
        ".flip(", ".permute(", ".detach(", ".expand(", ".diagonal(", ".unfold(", ".split(", "::-1",
        ".assign(", " += ", ".masked_fill_(", ".realize()", "del x",
        ".replace(", "slope(", "Tensor([", " > ", ".contiguous()", "None", ".kernelize()",
    ):  # fmt: skip
        assert part in text, part


def test_a_write_that_is_lost_is_found_and_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tensor.detach
    monkeypatch.setattr(Tensor, "detach", lambda x: right(x).clone())
    lines = (
        "x1 = Tensor([1.0, 2.0]).realize()",
        "x2 = x1 * 3",
        "x3 = x1.detach()",
        "show(x2)",
        "x3[0] = 7.0",
        "show(x1)",
    )
    found = Program(0, lines)
    with Context(DEV="PYTHON", PARALLEL=1):
        failure = check(found)
        assert failure.kind == "value"
        least, failure = smallest(found, failure, smaller, check)

    assert least.lines == (lines[0], lines[2], lines[4], lines[5])
    assert "show(x1): [[1.0, 2.0]] instead of [[7.0, 2.0]]" in failure.message


OVERLAPPING = Program(0, ("x1 = Tensor([1, 2, 3, 4, 5, 6, 7, 8])", "x1[::2] = x1[1:5]", "show(x1)"))


def test_numpy_writes_elements_that_overlap_as_if_it_had_read_them_all() -> None:
    """A stored part whose elements are further apart than those of its source, on one axis."""
    with Context(DEV="PYTHON", PARALLEL=1):
        assert check(OVERLAPPING) == ("", "")


def test_a_model_that_writes_while_it_reads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_by_one(self: Places, index: object, value: Places) -> None:
        for place, source in zip(self[index].places.flat, value.places.flat, strict=True):
            self.memory[place] = value.memory[source]

    monkeypatch.setattr(Places, "__setitem__", one_by_one)
    with Context(DEV="PYTHON", PARALLEL=1):
        assert check(OVERLAPPING).kind == "mirror"
