"""Random tensor programs against torch: a small count here, any by
`python -m tests.fuzz.programs`."""

import hashlib

import numpy
import pytest

from tests.fuzz.programs import Program, check, random_program, script, smaller
from tests.fuzz.programs.draw import Content, Input
from tests.fuzz.programs.form import Kind, Step, Value, all_steps, ours_of
from tests.fuzz.programs.mirror import Mirror, as_arrays
from tests.fuzz.programs.twins import realizes_twins
from tests.fuzz.runner import smallest
from tinycore import Context, Tensor
from tinycore.dtype import dtypes

GROUPS = "PYTHON:PYTHON:groups=16"
"""Plans of a graphics card: threads that share sums and operands."""
COUNTS = {"CPU:LLVM": 24, "CPU:CLANG": 8, "PYTHON": 16, GROUPS: 16}
"""Number of programs that each target runs; no two run the same one."""

FIRST = {"CPU:LLVM": 0, "CPU:CLANG": 1000, "PYTHON": 2000, GROUPS: 3000}


@pytest.mark.sample(36)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("target", [pytest.param(t, marks=pytest.mark.device(t)) for t in COUNTS])
def test_programs_compute_what_torch_computes(target: str, part: int) -> None:
    count = COUNTS[target] // 4
    with Context(DEV=target):
        for seed in range(FIRST[target] + part * count, FIRST[target] + (part + 1) * count):
            program = random_program(seed)
            failure = check(program)
            if failure.kind:
                pytest.fail(f"{target}: {script(program, failure)}")


# The generator


DIGEST = "52dee112a12678c8"
"""Digest of the first programs; a change of the generator changes it."""


def test_a_seed_makes_the_same_program_everywhere() -> None:
    digest = hashlib.sha256()
    for seed in range(100):
        program = random_program(seed)
        digest.update("\n".join([*map(repr, program.inputs), *ours_of(program.steps)]).encode())

    assert digest.hexdigest()[:16] == DIGEST


def test_data_is_the_same_everywhere() -> None:
    numbers = Input("x", (3,), dtypes.float16, Content.NUMBERS, -2, 2, seed=7).data()
    whole = Input("x", (5,), dtypes.int32, Content.DISTINCT, 0, 9, seed=7).data()

    assert numbers.tolist() == [-0.705078125, -1.396484375, 0.603515625]
    assert whole.tolist() == [3, 1, 7, 0, 6]


def test_inputs_are_what_their_dtype_represents() -> None:
    for seed in range(40):
        for start in random_program(seed).inputs:
            data = start.data()
            held = Tensor(data, device="PYTHON", dtype=start.dtype).numpy()
            assert (held.astype(data.dtype) == data).all(), start


def test_every_kind_of_step_is_made() -> None:
    steps = [step for seed in range(120) for step in all_steps(random_program(seed).steps)]
    code = "\n".join(step.ours for step in steps)

    assert {step.kind for step in steps} == set(Kind)
    for name in ("sum(", "matmul(", "conv2d(", "sort(", "gather(", "assign(", "pad(", "cat("):
        assert name in code


# The comparison


def program_with(method: str, few: int = 0) -> Program:
    """The first program without gradients, whose mismatches are all told, that uses a method."""
    for seed in range(few, 4000):
        program = random_program(seed)
        used = f".{method}(" in "\n".join(ours_of(program.steps))
        if used and not program.needs_gradients() and not check(program).kind:
            return program
    raise AssertionError(f"no program uses {method}")


def test_an_op_that_is_slightly_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tensor.softsign

    def wrong(x: Tensor) -> Tensor:
        return right(x) * 1.0001

    with Context(DEV="PYTHON"):
        program = program_with("softsign")
        monkeypatch.setattr(Tensor, "softsign", wrong)
        failure = check(program)

        assert failure.kind == "value"


def test_a_failure_shrinks_to_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Tensor, *axes: int) -> Tensor:
        return x

    with Context(DEV="PYTHON"):
        program = program_with("flip")
        monkeypatch.setattr(Tensor, "flip", wrong)
        failure = check(program)
        assert failure.kind
        least, failure = smallest(program, failure, smaller, check)

        assert len(least.steps) == 1
        assert ".flip(" in script(least, failure)


def step_of(name: str, operand: str, expression: str, kind: Kind = Kind.COMPUTE) -> Step:
    value = Value(name, (2,), dtypes.float32, 0.5, 1.0)
    return Step(kind, (value,), (operand,), f"{name} = {expression}", "")


def realized(name: str) -> Step:
    return Step(Kind.REALIZE, (), (name,), f"Tensor.realize({name})", "", ends=(name,))


def twins_in(*steps: Step) -> bool:
    with Context(DEV="PYTHON"):
        scope = {"Tensor": Tensor, "x": Tensor([0.5, 0.75])}
        return realizes_twins(Program(0, (), steps, (), together=False), scope)


def test_a_realized_value_with_a_twin_is_noticed() -> None:
    """Seed 406539: rsqrt is the reciprocal of sqrt, and realizing one ends gradients in both."""
    root, back = step_of("a", "x", "x.sqrt()"), step_of("b", "a", "a.reciprocal()")
    twin, other = step_of("c", "x", "x.rsqrt()"), step_of("c", "x", "x.exp()")

    assert twins_in(root, back, twin, realized("b"))
    assert not twins_in(root, back, other, realized("b"))
    assert not twins_in(root, back, realized("b"), twin)


def test_a_realized_value_that_a_derivative_holds_is_noticed() -> None:
    """Seed 900554: the derivative of a quotient holds it here; torch divides anew."""
    quotient, total = step_of("a", "x", "x / (x + 4)"), step_of("b", "a", "a.sum()")
    slope = step_of("c", "b", "b.gradient(x)[0]", Kind.GRADIENT)
    double, double_of_total = step_of("d", "c", "c * 2"), step_of("d", "b", "b * 2")

    assert twins_in(quotient, total, slope, double, realized("a"))
    assert not twins_in(quotient, total, double_of_total, realized("a"))


def test_samples_spread_as_the_coarsest_dtype_rounds() -> None:
    spreads: dict[float, list[float]] = {}
    for seed in range(400):
        program = random_program(seed)
        for step in program.steps:
            if "conv2d(" in step.ours and step.outputs[0] in program.compared:
                data = as_arrays(program)
                exact, moved = Mirror(program).run(data), Mirror(program, 1).run(data)
                value = step.outputs[0]
                error = numpy.abs(moved[value.name] - exact[value.name]).max()
                size = numpy.abs(exact[value.name]).max()
                spreads.setdefault(step.unit, []).append(error / size)

    assert spreads
    for unit, errors in spreads.items():
        assert unit < numpy.median(errors) < 100 * unit
