"""Random tensor programs against torch: a small count here, any by
`python -m tinycore.testing.programs`."""

import hashlib

import numpy
import pytest

from tinycore import Context, Device, Tensor
from tinycore.dtype import dtypes
from tinycore.errors import CompilerUnavailable, DeviceUnavailable, UnknownDevice
from tinycore.testing.programs import Program, check, random_program, script, smallest
from tinycore.testing.programs.draw import Content, Input
from tinycore.testing.programs.form import Kind, Step, Value, all_steps, ours_of
from tinycore.testing.programs.mirror import Mirror, as_arrays
from tinycore.testing.programs.twins import realizes_twins

COUNTS = {"CPU:LLVM": 40, "CPU:CLANG": 20, "PYTHON": 24}
"""How many programs each target runs; no two run the same one."""

FIRST = {"CPU:LLVM": 0, "CPU:CLANG": 1000, "PYTHON": 2000}


def is_here(target: str) -> bool:
    device, _, renderer = target.partition(":")
    try:
        return bool(Device[device].toolchain_for(renderer))
    except (CompilerUnavailable, DeviceUnavailable, UnknownDevice):
        return False


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("target", list(COUNTS))
def test_programs_compute_what_torch_computes(target: str, part: int) -> None:
    if not is_here(target):
        pytest.skip(f"{target} is not here")
    count = COUNTS[target] // 4
    with Context(DEV=target):
        for seed in range(FIRST[target] + part * count, FIRST[target] + (part + 1) * count):
            program = random_program(seed)
            failure = check(program)
            if failure is not None:
                pytest.fail(f"seed {seed} on {target}: {failure}\n{script(program, failure)}")


# The generator


DIGEST = "70dab4f88b2ba8a9"
"""Of the first programs; a change of the generator changes it."""


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

    assert {step.kind.name for step in steps} == {"COMPUTE", "REALIZE", "WRITE", "GRADIENT", "JIT"}
    for name in ("sum(", "matmul(", "conv2d(", "sort(", "gather(", "assign(", "pad(", "cat("):
        assert name in code


# The comparison


def program_with(method: str, few: int = 0) -> Program:
    """The first program that uses a method and passes."""
    for seed in range(few, 4000):
        program = random_program(seed)
        if f".{method}(" in "\n".join(ours_of(program.steps)) and check(program) is None:
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

        assert failure is not None
        assert failure.kind == "value"


def test_a_failure_shrinks_to_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Tensor, *axes: int) -> Tensor:
        return x

    with Context(DEV="PYTHON"):
        program = program_with("flip")
        monkeypatch.setattr(Tensor, "flip", wrong)
        failure = check(program)
        assert failure is not None
        least, failure = smallest(program, failure)

        assert len(least.steps) == 1
        assert ".flip(" in script(least, failure)


def test_a_realized_value_with_a_twin_is_noticed() -> None:
    """Seed 406539: rsqrt is the reciprocal of sqrt, and realizing one ends gradients in both."""

    def numbers(name: str) -> Value:
        return Value(name, (2,), dtypes.float32, 0.5, 1.0)

    def step(name: str, operand: str, expression: str) -> Step:
        return Step(Kind.COMPUTE, (numbers(name),), (operand,), f"{name} = {expression}", "")

    root, back = step("a", "x", "x.sqrt()"), step("b", "a", "a.reciprocal()")
    twin, other = step("c", "x", "x.rsqrt()"), step("c", "x", "x.exp()")
    realized = Step(Kind.REALIZE, (), ("b",), "Tensor.realize(b)", "", ends=("b",))

    def noticed(*steps: Step) -> bool:
        with Context(DEV="PYTHON"):
            scope = {"Tensor": Tensor, "x": Tensor([0.5, 0.75])}
            return realizes_twins(Program(0, (), steps, (), together=False), scope)

    assert noticed(root, back, twin, realized)
    assert not noticed(root, back, other, realized)
    assert not noticed(root, back, realized, twin)


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
