"""Tensors on NV: what is computed is what NumPy computes, and steps are captured as graphs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest
from rm_standin import Machine
from rm_standin.cards import GA102, GB202, H200
from simulated_nv import backend_of

from tinycore import Context, Tensor, TinyJit, nn
from tinycore.config import settings
from tinycore.plugin import register, unregister

CARDS = {"Ampere": GA102, "Hopper": H200, "Blackwell": GB202}


COMPILED = "Hopper by NVRTC"
"""The one whose kernels NVIDIA's compiler makes."""


@pytest.fixture(scope="module", params=[*CARDS, COMPILED])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A machine whose card tensors are on that name no device."""
    name, _, compiler = request.param.partition(" by ")
    if compiler:
        request.getfixturevalue("nvrtc")
    made = Machine((CARDS[name],))
    register(backend_of(made))
    with Context(DEV=f"NV:{compiler or 'PTX'}"):
        yield made
    unregister("NV")


def numbers(*shape: int) -> numpy.ndarray:
    """Floats that are the same in each run."""
    return numpy.random.default_rng(7).standard_normal(shape).astype(numpy.float32)


def test_arithmetic_sums_and_products(machine: Machine) -> None:
    a, b = numbers(5, 12), numbers(12, 3)

    found = (Tensor(a) @ Tensor(b)).relu().sum(0).numpy()

    assert numpy.allclose(found, numpy.maximum(a @ b, 0).sum(0), rtol=1e-4, atol=1e-4)
    assert machine.launched


def test_a_captured_step_is_one_submission(machine: Machine) -> None:
    step = TinyJit(lambda x: ((x * 2).contiguous() + 1).contiguous().realize())
    inputs = [Tensor(numbers(64) + n).realize() for n in range(5)]

    found = [step(each).numpy() for each in inputs]

    for n, each in enumerate(found):
        assert numpy.allclose(each, (numbers(64) + n) * 2 + 1)


@pytest.mark.slow
def test_a_training_step_computes_what_the_interpreter_does(machine: Machine) -> None:
    def losses(device: str) -> list[float]:
        with Context(DEV=device):
            x = Tensor(numbers(8, 6))
            labels = Tensor(numpy.arange(8, dtype=numpy.int32) % 3)
            weights = Tensor(numbers(6, 3), requires_grad=True)
            optimizer = nn.optim.SGD([weights], lr=0.1)

            @TinyJit
            def step(batch: Tensor) -> Tensor:
                loss = batch.matmul(weights).relu().sparse_categorical_crossentropy(labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                return loss.realize()

            with Tensor.train():
                return [float(step(x).item()) for _ in range(5)]

    assert numpy.allclose(losses(str(settings.DEV)), losses("PYTHON"), rtol=1e-5)
