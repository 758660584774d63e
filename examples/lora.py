"""Train a small network, then fine-tune it by LoRA: low-rank changes of weights that stay frozen.

    python examples/lora.py

A network learns to classify points on four arms of a spiral. Then the spiral is turned, and the
network guesses. LoRA (https://arxiv.org/abs/2106.09685) freezes every weight W (O, I), and trains
up (O, R) and down (R, I) of W + up @ down, which has few numbers for a small rank R. In the end
the change is merged into W: the network has its old form, and nothing extra to compute.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy
from tqdm import trange

from tinycore import Tensor, TinyJit, nn

ARMS = 4


class Network:
    """Layers with a bend between them: points (N, 2) -> the scores of the arms (N, ARMS)."""

    def __init__(self, layers: Sequence[Callable[[Tensor], Tensor]]) -> None:
        self.layers = layers

    def __call__(self, x: Tensor) -> Tensor:
        """The score of each arm."""
        for layer in self.layers[:-1]:
            x = layer(x).gelu()
        return self.layers[-1](x)


class Lora:
    """A frozen layer with a trained change of a low rank: x (N, I) -> (N, O)."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        outputs, inputs = layer.weight.shape
        for weight in nn.state.get_parameters(layer):
            weight.requires_grad_(False)
        self.layer = layer
        self.down = Tensor.randn(rank, inputs) / math.sqrt(inputs)
        self.up = Tensor.zeros(outputs, rank)  # at first nothing is changed

    def __call__(self, x: Tensor) -> Tensor:
        """The change is applied to x: the product of up and down is never in memory."""
        return self.layer(x) + x.linear(self.down.T).linear(self.up.T)

    def merged(self) -> nn.Linear:
        """The layer, with the change in its weight."""
        self.layer.weight.assign(self.layer.weight + self.up @ self.down).realize()
        return self.layer


def drawn(count: int, turned: float) -> tuple[Tensor, Tensor]:
    """Points of the spiral (count, 2), turned by an angle, and the arms they lie on (count,)."""
    arm, radius = Tensor.randint(count, high=ARMS), Tensor.rand(count)
    angle = arm * (2 * math.pi / ARMS) + 4 * radius + 0.15 * Tensor.randn(count) + turned
    return Tensor.stack(angle.cos(), angle.sin(), dim=1) * radius.unsqueeze(1), arm


def accuracy(network: Network, turned: float) -> float:
    """The share of new points that are classified right."""
    points, arms = drawn(4096, turned)
    return (network(points).argmax(1) == arms).float().mean().item()


def train(network: Network, turned: float, options: argparse.Namespace) -> int:
    """Train what is not frozen on the turned spiral; return how many numbers that are."""
    optimizer = nn.optim.Adam(nn.state.get_parameters(network), lr=options.rate)

    @TinyJit
    @Tensor.train()
    def step() -> Tensor:
        optimizer.zero_grad()
        points, arms = drawn(options.batch, turned)
        loss = network(points).sparse_categorical_crossentropy(arms).backward()
        return loss.realize(*optimizer.schedule_step())

    for _ in (progress := trange(options.steps, disable=None)):
        progress.set_description(f"loss {step().item():5.3f}")
    return sum(weight.numel() for weight in optimizer.params)


def main() -> None:
    """Pretrain, fine-tune, merge; and say what each did."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500, help="of each of the two trainings")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--turned", type=float, default=45, help="degrees")
    parser.add_argument("--rate", type=float, default=0.005, help="the learning rate")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    turned = math.radians(options.turned)

    Tensor.manual_seed(options.seed)
    sizes = [2, options.features, options.features, options.features, ARMS]
    layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
    network, start = Network(layers), time.perf_counter()
    everything = train(network, 0, options)
    print(f"pretrained {everything} numbers: {accuracy(network, 0):.1%} are right")
    print(f"turned by {options.turned:g} degrees: {accuracy(network, turned):.1%} are right")

    pretrained = [layer.weight.numpy() for layer in layers]
    changes = [Lora(layer, options.rank) for layer in layers]
    tuned = Network(changes)
    few = train(tuned, turned, options)
    seconds = time.perf_counter() - start
    pairs = zip(pretrained, layers, strict=True)
    kept = all(numpy.array_equal(old, layer.weight.numpy()) for old, layer in pairs)
    print(f"LoRA trained {few} numbers: {accuracy(tuned, turned):.1%} are right")
    print(f"the pretrained weights are {'the same' if kept else 'changed'}")
    merged = Network([change.merged() for change in changes])
    print(f"merged: {accuracy(merged, turned):.1%} are right")
    print(f"{2 * options.steps} steps in {seconds:.1f} s")
    print(f"its timeline: VIZ=2 python {sys.argv[0]}")


if __name__ == "__main__":
    main()
