"""`tinycore demo`: train a small network on real handwritten digits, and show what it learned.

Floor 6. Imports the public API. Everything is seeded: the same device gives the same numbers.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable

import numpy
from tqdm import tqdm

from tinycore import Context, Device, Tensor, TinyJit, nn
from tinycore.cli.devices import computing_on
from tinycore.cli.draw import beside, picture, ramp_for, shrunk
from tinycore.cli.options import Commands, count, subcommand
from tinycore.errors import ArgumentError
from tinycore.nn.datasets import digits, mnist

__all__ = ["DigitNet", "add", "run"]

STEPS = 200
"""As few as reach 97% with every seed from 0 to 14, so that the interpreter too is done soon."""
LEARNING_RATE = 0.01
SLOWER_FROM = 0.7
"""The share of the steps after which the learning rate falls to a tenth."""
EVALUATED_AT_ONCE = 500
PICTURE_SIDE = 10
PICTURES = 5

EPILOG = """\
examples:
  tinycore demo                              1,797 digits of 8 x 8 pixels, part of the package
  tinycore demo --data mnist --steps 600     the four idx-ubyte files of MNIST in the folder `mnist`
  DEV=PYTHON tinycore demo                   on the interpreter: slower, but it needs nothing
  DEBUG=2 tinycore demo --steps 3            and see every kernel that runs
"""


class DigitNet:
    """Two convolutions and a linear layer: images (N, 1, side, side) -> scores (N, 10).

    `ink` is the value of the darkest pixel.
    """

    def __init__(self, side: int, ink: float) -> None:
        self.ink = ink
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
            nn.Linear(32 * (side // 4) ** 2, 10),
        ]

    def __call__(self, images: Tensor) -> Tensor:
        """The score of each digit."""
        return (images.float() / self.ink).sequential(self.layers)


def add(commands: Commands) -> None:
    """Add this command to the command line."""
    command = subcommand(
        commands,
        run,
        "demo",
        "train a small network on handwritten digits",
        "Train a small convolutional network on real handwritten digits, "
        "test it on digits it has not seen, and draw a few.",
        EPILOG,
    )
    command.add_argument("--data", metavar="PATH", help="a folder with the four idx files of MNIST")
    command.add_argument(
        "--steps", type=count, default=STEPS, help=f"number of steps, {STEPS} unless given"
    )
    command.add_argument("--batch", type=count, default=64, help="digits per step, 64 unless given")
    command.add_argument(
        "--seed", type=int, default=0, help="seed of the weights and batches, 0 unless given"
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, test, draw."""
    print(f"computing on {computing_on(Device.DEFAULT)}; `tinycore devices` lists the others")
    split = digits() if arguments.data is None else mnist(path=arguments.data)
    images, labels, held_out, truth = split
    side = images.shape[-1]
    if images.shape[-2] != side or side < 4:
        raise ArgumentError(f"the demo takes square images of 4 pixels or more, not {images.shape}")
    print(f"{len(images)} digits to learn from, {len(held_out)} held out")
    Tensor.manual_seed(arguments.seed)
    model = DigitNet(side, float(images.max().item()))
    start = time.perf_counter()
    first, last = _train(model, images, labels.int(), arguments.steps, arguments.batch)
    seconds = time.perf_counter() - start
    print(f"{arguments.steps} steps in {seconds:.1f} s, loss {first:.3f} -> {last:.3f}")
    parts = held_out.split(EVALUATED_AT_ONCE)
    said = numpy.concatenate([model(part).argmax(1).numpy() for part in parts])
    true = truth.numpy()
    right = int((said == true).sum())
    print(f"held-out accuracy {right / len(true):.2%}: {right} of {len(true)} right\n")
    _show(held_out.numpy()[:, 0], said, true)
    print("\nits timeline: VIZ=2 tinycore demo")
    return 0


def _train(
    model: DigitNet, images: Tensor, labels: Tensor, steps: int, batch: int
) -> tuple[float, float]:
    """Train, showing progress; the losses of the first step and the last."""
    optimizer = nn.optim.Adam(nn.state.get_parameters(model), lr=LEARNING_RATE)

    @TinyJit
    def step() -> Tensor:
        chosen = Tensor.randint(batch, high=len(images))
        scores = model(images[chosen])
        optimizer.zero_grad()
        loss = scores.sparse_categorical_crossentropy(labels[chosen]).backward()
        return loss.realize(*optimizer.schedule_step())

    losses = []
    progress = tqdm(range(steps), "training", disable=None, leave=False)
    with Context(TRAINING=1):
        for number in progress:
            if number == int(steps * SLOWER_FROM):
                optimizer.lr.assign(optimizer.lr * 0.1).realize()
            losses.append(float(step().item()))
            progress.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
    return losses[0], losses[-1]


def _show(images: numpy.ndarray, said: numpy.ndarray, truth: numpy.ndarray) -> None:
    """Draw the first few digits, and a mistake if there was one, with the prediction of each."""
    columns = shutil.get_terminal_size().columns
    fitting = max(1, min(PICTURES, columns // (2 * min(images.shape[-1], PICTURE_SIDE) + 3)))
    wrong = numpy.flatnonzero(said != truth)[:1]
    right = numpy.flatnonzero(said == truth)[: fitting - len(wrong)]
    ramp = ramp_for(sys.stdout)
    blocks = [
        [
            *picture(shrunk(images[n], PICTURE_SIDE), ramp),
            f"says {said[n]}" + (f", is {truth[n]}" if n in wrong else ""),
        ]
        for n in [*right, *wrong]
    ]
    print("\n".join(beside(blocks)))
