"""Networks that learn on the stand-in, in machine code of Mesa's compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from adreno.kgsl import Kgsl
from simulated_qcom import backend_of, execute

from tiny_qcom.descriptors import LINE, PLANE
from tiny_qcom.ir3 import library_path
from tinycore import Context, Tensor, TinyJit, nn
from tinycore.errors import CompilerUnavailable
from tinycore.nn.datasets import digits
from tinycore.plugin import register, unregister

try:
    library_path()
except CompilerUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

pytestmark = pytest.mark.slow

Layers = list[Callable[[Tensor], Tensor]]
KIND = PLANE | LINE
"""The bits of a texture's descriptor in which images and lines of texels differ."""
INK = 16
"""The value of the darkest pixel."""


@pytest.fixture(scope="module")
def driver() -> Iterator[Kgsl]:
    """A stand-in, whose device is QCOM."""
    made = Kgsl(execute)
    register(backend_of(made))
    yield made
    unregister("QCOM")
    assert not made.faults


def trained(layers: Layers, images: Any, labels: Any, steps: int, batch: int) -> list[float]:
    """Train layers on digits; the loss of each step."""
    optimizer = nn.optim.Adam(nn.state.get_parameters(layers), lr=0.02)

    @TinyJit
    @Tensor.train()
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (x / INK).sequential(layers).sparse_categorical_crossentropy(y).backward()
        return loss.realize(*optimizer.schedule_step())

    losses = []
    for number in range(steps):
        start = number * batch % (len(images) - batch)
        x = Tensor(images[start : start + batch]).float().realize()
        losses.append(float(step(x, Tensor(labels[start : start + batch])).item()))
    return losses


@pytest.mark.parametrize("mode", [0, 2])
def test_digits_are_learned(driver: Kgsl, mode: int) -> None:
    """Two layers, 25 steps of 128 digits: 88 % of the digits held out are told apart."""
    driver.launches.clear()
    with Context(DEV="QCOM:IR3", IMAGE=mode):
        images, labels, held_out, truth = digits()
        Tensor.manual_seed(0)
        first, second = nn.Linear(64, 32), nn.Linear(32, 10)
        layers: Layers = [lambda x: x.flatten(1), first, Tensor.relu, second]
        losses = trained(layers, images.numpy(), labels.numpy(), 25, 128)
        scores = (held_out.float() / INK).sequential(layers)
        right = (scores.argmax(1) == truth).float().mean().item()
    assert losses[-1] < losses[0] / 4
    assert right > 0.85
    read = [words for launch in driver.launches for words in launch.textures]
    kinds = {int(words[2]) & KIND for words in read}  # plain buffers are read as lines of texels
    assert (PLANE in kinds) is (mode == 2)


def convolutional() -> Layers:
    """Two convolutions with batch norm, and a linear layer, for images of 8 x 8."""
    Tensor.manual_seed(0)
    return [
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm(8),
        Tensor.relu,
        Tensor.max_pool2d,
        nn.Conv2d(8, 8, 3, padding=1, bias=False),
        nn.BatchNorm(8),
        Tensor.relu,
        Tensor.max_pool2d,
        lambda x: x.flatten(1),
        nn.Linear(32, 10),
    ]


def test_a_convolutional_network_learns_with_operands_in_images_of_halves(driver: Kgsl) -> None:
    """IMAGE=2: losses are those of float32 on a processor, but for the rounding to halves."""
    with Context(DEV="CPU"):
        images, labels = (part.numpy() for part in digits()[:2])
        expected = trained(convolutional(), images, labels, 5, 16)
    driver.launches.clear()
    with Context(DEV="QCOM:IR3", IMAGE=2):
        losses = trained(convolutional(), images, labels, 5, 16)
    assert losses == pytest.approx(expected, rel=2e-2)
    assert losses[-1] < losses[0]
    assert any(launch.textures for launch in driver.launches)
    assert any(launch.images for launch in driver.launches)
