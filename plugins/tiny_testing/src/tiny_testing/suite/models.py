"""Level 5: gradients, training steps and a small transformer, beside the reference evaluator.

The same program runs on the device and on `ReferenceRuntime`, which compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy

from tiny_testing.reference import ReferenceRuntime
from tiny_testing.suite.case import Level, case
from tiny_testing.suite.operations import generator
from tiny_testing.suite.subject import Array, Subject
from tinycore import Tensor, TinyJit, nn
from tinycore.dtype import dtypes
from tinycore.tensor.runtime import runtime, use

__all__ = [
    "test_a_captured_training_step",
    "test_a_convolutional_network",
    "test_a_small_transformer",
    "test_a_training_step",
    "test_adam_takes_the_same_steps",
    "test_training_learns",
]

RELATIVE, ABSOLUTE = 2e-4, 2e-5
"""Tolerances of numbers after many float32 operations."""

Program = Callable[[str, Sequence[Array]], list[Array]]
"""A model: a device and its weights to what is to be compared."""


@contextmanager
def reference() -> Iterator[None]:
    """Inside, tensors are computed by the reference evaluator."""
    before = runtime()
    use(ReferenceRuntime())
    try:
        yield
    finally:
        use(before)


def same(subject: Subject, program: Program, *weights: Array) -> None:
    """Check that a program gives on the device what it gives on the reference evaluator."""
    found = program(subject.name, weights)
    with reference():
        expected = program("REFERENCE", weights)
    for number, (here, there) in enumerate(zip(found, expected, strict=True)):
        assert here.shape == there.shape
        far = numpy.abs(here - there) > ABSOLUTE + RELATIVE * numpy.abs(there)
        assert not (far | numpy.isnan(here)).any(), (
            f"result {number} of {len(found)} differs in {int(far.sum())} of {here.size} elements, "
            f"by up to {float(numpy.abs(here - there).max()):.3g}"
        )


def weights_of(*shapes: tuple[int, ...]) -> list[Array]:
    """Random weights of a reasonable size."""
    random = generator("weights", shapes)
    return [random.standard_normal(shape).astype(numpy.float32) / 4 for shape in shapes]


def parameters(device: str, weights: Sequence[Array]) -> list[Tensor]:
    """Weights that a gradient is asked for."""
    return [Tensor(w, device=device, requires_grad=True) for w in weights]


# --- a network of two layers


def two_layers(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Logits of a perceptron."""
    w1, b1, w2 = weights
    return (x @ w1 + b1).tanh() @ w2


def descend(device: str, arrays: Sequence[Array]) -> list[Array]:
    """Three steps of plain descent: the weights after them, and the losses."""
    x = Tensor(arrays[0], device=device)
    labels = Tensor(numpy.arange(16) % 5, device=device, dtype=dtypes.int32)
    weights = parameters(device, arrays[1:])
    losses = []
    for _ in range(3):
        loss = two_layers(x, weights).cross_entropy(labels)
        gradients = loss.gradient(*weights)
        losses.append(loss.numpy())
        weights = [
            (w.detach() - g * 0.1).realize() for w, g in zip(weights, gradients, strict=True)
        ]
    return [*losses, *[w.numpy() for w in weights]]


@case(Level.MODELS)
def test_a_training_step(subject: Subject) -> None:
    """A network's loss, gradients and weights over three steps of descent."""
    same(subject, descend, *weights_of((16, 12), (12, 20), (20,), (20, 5)))


def convolve(device: str, arrays: Sequence[Array]) -> list[Array]:
    """The loss and gradients of a network of convolutions, normalization and pooling."""
    x = Tensor(arrays[0], device=device)
    weights = parameters(device, arrays[1:])
    w1, scale, w2, w3 = weights
    y = x.conv2d(w1, padding=1)
    y = ((y - y.mean((0, 2, 3), keepdim=True)) * scale.reshape(1, -1, 1, 1)).relu().max_pool2d(2)
    y = y.conv2d(w2, stride=2).relu().flatten(1) @ w3
    loss = (y.log_softmax() ** 2).mean()
    return [loss.numpy(), *[g.numpy() for g in loss.gradient(*weights)]]


@case(Level.MODELS)
def test_a_convolutional_network(subject: Subject) -> None:
    """Gradients through convolutions, means, maxima and reshaping."""
    same(
        subject, convolve,
        *weights_of((3, 2, 12, 12), (4, 2, 3, 3), (4,), (6, 4, 2, 2), (54, 7)),
    )  # fmt: skip


def transform(device: str, arrays: Sequence[Array]) -> list[Array]:
    """The loss and gradients of one transformer block over embedded tokens."""
    tokens = Tensor(numpy.arange(24).reshape(2, 12) * 7 % 11, device=device, dtype=dtypes.int32)
    weights = parameters(device, arrays)
    table, projection, output, up, down, scale = weights
    x = table[tokens]
    queries, keys, values = (
        part.reshape(2, 12, 2, 8).transpose(1, 2)
        for part in (x.layernorm() * scale @ projection).split(16, dim=-1)
    )
    mixed = queries.scaled_dot_product_attention(keys, values, is_causal=True)
    x = x + mixed.transpose(1, 2).reshape(2, 12, 16) @ output
    x = x + (x.layernorm() @ up).gelu() @ down
    logits = x @ table.T
    loss = logits[:, :-1].reshape(22, 11).cross_entropy(tokens[:, 1:].reshape(22))
    return [logits.numpy(), loss.numpy(), *[g.numpy() for g in loss.gradient(*weights)]]


@case(Level.MODELS)
def test_a_small_transformer(subject: Subject) -> None:
    """Embeddings, causal attention, normalization and a feed-forward layer, with all gradients."""
    same(
        subject, transform,
        *weights_of((11, 16), (16, 48), (16, 16), (16, 32), (32, 16), (16,)),
    )  # fmt: skip


# --- optimizers and captured steps, beside the same without capture


class Network:
    """A small classifier of points, the same in every run."""

    def __init__(self, device: str) -> None:
        w1, b1, w2 = weights_of((2, 16), (16,), (16, 2))
        self.weights = [
            Tensor(w, device=device, requires_grad=True).contiguous().realize().detach()
            for w in (w1, b1, w2)
        ]
        for weight in self.weights:
            weight.requires_grad_(True)
        points = generator("points").standard_normal((64, 2)).astype(numpy.float32)
        self.points = Tensor(points, device=device).realize()
        inside = (points**2).sum(axis=1) < 1
        self.labels = Tensor(inside, device=device, dtype=dtypes.int32).realize()

    def step(self, optimizer: nn.optim.Optimizer) -> Tensor:
        """One step of training; the loss before it."""
        optimizer.zero_grad()
        loss = two_layers(self.points, self.weights).cross_entropy(self.labels)
        loss.backward()
        optimizer.step()
        return loss.realize()


def losses_of(device: str, steps: int, captured: bool = False) -> list[float]:
    """The losses of steps with Adam."""
    network = Network(device)
    optimizer = nn.optim.Adam(network.weights, lr=0.05)
    with Tensor.train():
        work = TinyJit(lambda: network.step(optimizer)) if captured else None
        return [float((work() if work else network.step(optimizer)).item()) for _ in range(steps)]


@case(Level.MODELS)
def test_adam_takes_the_same_steps(subject: Subject) -> None:
    """Ten steps with Adam have the losses that they have on PYTHON."""
    found, expected = losses_of(subject.name, 10), losses_of("PYTHON", 10)
    assert numpy.allclose(found, expected, RELATIVE, ABSOLUTE), (
        f"losses {found} instead of {expected}"
    )


@case(Level.MODELS)
def test_a_captured_training_step(subject: Subject) -> None:
    """A whole training step in TinyJit, replayed, has the losses of the step run eagerly."""
    found, expected = losses_of(subject.name, 8, captured=True), losses_of(subject.name, 8)
    assert numpy.allclose(found, expected, RELATIVE, ABSOLUTE), (
        f"losses {found} instead of {expected}"
    )


@case(Level.MODELS)
def test_training_learns(subject: Subject) -> None:
    """The loss halves within sixty steps."""
    losses = losses_of(subject.name, 60, captured=True)
    assert losses[-1] < losses[0] / 2, f"the loss went from {losses[0]:.3f} to {losses[-1]:.3f}"
