"""Train a small diffusion model to draw circles, squares, triangles and crosses.

    python examples/diffusion.py --folder drawings

The data are drawn by the program, anew at each step. The model sees a shape under noise and how
much of it there is, and predicts the velocity from noise to shape (rectified flow,
https://arxiv.org/abs/2209.03003). To draw, it begins with pure noise and follows the velocity in
a few steps. A PNG of 64 drawings is written as it learns; PNGs need `pip install pillow`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import numpy
from PIL import Image
from tqdm import trange

from tinycore import Tensor, TinyJit, nn
from tinycore.nn.optim.lr_scheduler import CosineAnnealingLR

SIDE = 16
"""Rows and columns of an image."""
DRAWINGS = 64
"""Drawings in a PNG, 8 by 8."""


def shapes(count: int) -> Tensor:
    """Images (count, 1, SIDE, SIDE): white, 1, inside of a random shape, and -1 around it."""
    center, kind = Tensor.uniform(2, count, 1, 1, low=5, high=11), Tensor.randint(count, high=4)
    radius = Tensor.uniform(count, 1, 1, low=3, high=5)
    axis = Tensor.arange(SIDE).float() + 0.5
    down, right = axis.reshape(-1, 1) - center[0], axis - center[1]
    near, far = down.abs().minimum(right.abs()), down.abs().maximum(right.abs())
    distances = [
        (down.square() + right.square()).sqrt() - radius,  # a circle
        far - 0.8 * radius,  # a square
        (right.abs() * 2 - down - radius).maximum(down - radius),  # a triangle
        (near - 0.3 * radius).maximum(far - radius),  # a cross
    ]
    chosen = kind.one_hot(4).reshape(count, 4, 1, 1)
    distance = (Tensor.stack(*distances, dim=1) * chosen).sum(1, keepdim=True)
    return (-distance).clip(-1, 1)  # an edge is a pixel wide


class Block:
    """Two convolutions that add to x (N, C, H, W), told the time by `told` (N, T)."""

    def __init__(self, channels: int, told: int) -> None:
        self.before_first, self.before_second = (nn.GroupNorm(8, channels) for _ in range(2))
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(told, channels)

    def __call__(self, x: Tensor, told: Tensor) -> Tensor:
        """The residual of the convolutions, added to x."""
        found = self.first(self.before_first(x).silu()) + self.time(told).unflatten(1, (-1, 1, 1))
        return x + self.second(self.before_second(found).silu())


class Unet:
    """Images (N, 1, SIDE, SIDE) at times (N,) in 0 (noise) to 1 -> velocities of that shape."""

    def __init__(self, channels: int) -> None:
        wide = 2 * channels
        self.enter = nn.Conv2d(1, channels, 3, padding=1)
        self.fine, self.last = Block(channels, channels), Block(channels, channels)
        self.down = nn.Conv2d(channels, wide, 2, stride=2)
        self.coarse = [Block(wide, channels) for _ in range(2)]
        self.up = nn.ConvTranspose2d(wide, channels, 2, stride=2)
        self.leave = nn.Conv2d(channels, 1, 3, padding=1)
        self.frequencies = Tensor(2.0 ** numpy.linspace(0, 6, channels // 2, dtype=numpy.float32))
        self.frequencies.is_param_(False)

    def __call__(self, x: Tensor, times: Tensor) -> Tensor:
        """Down to half the side, where a place sees the whole shape, and up again."""
        angles = times.unsqueeze(1) * self.frequencies * math.pi
        told = Tensor.cat(angles.sin(), angles.cos(), dim=1)
        fine = self.fine(self.enter(x), told)
        coarse = self.down(fine)
        for block in self.coarse:
            coarse = block(coarse, told)
        return self.leave(self.last(fine + self.up(coarse), told))


def write_png(path: Path, images: Tensor) -> None:
    """Write images (64, 1, SIDE, SIDE) of -1 to 1 as one picture, each pixel 4 wide and high."""
    rows = ((images.clip(-1, 1) + 1) * 127.5).round().cast("uint8").numpy()
    picture = rows.reshape(8, 8, SIDE, SIDE).swapaxes(1, 2).reshape(8 * SIDE, 8 * SIDE)
    Image.fromarray(picture).resize((32 * SIDE, 32 * SIDE), Image.Resampling.NEAREST).save(path)


def main() -> None:
    """Train, and draw now and then."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--rate", type=float, default=2e-3, help="the highest learning rate")
    parser.add_argument("--moves", type=int, default=25, help="steps from noise to a drawing")
    parser.add_argument("--pictures", type=int, default=10, help="PNGs to write")
    parser.add_argument("--folder", type=Path, default=Path("drawings"), help="for the PNGs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    Tensor.manual_seed(options.seed)
    model = Unet(options.channels)
    optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=options.rate)
    schedule = CosineAnnealingLR(optimizer, options.steps)

    @TinyJit
    @Tensor.train()
    def train_step() -> Tensor:
        optimizer.zero_grad()
        images, times = shapes(options.batch), Tensor.rand(options.batch)
        noise, share = Tensor.randn(*images.shape), times.reshape(-1, 1, 1, 1)
        found = model(share * images + (1 - share) * noise, times)
        loss = (found - (images - noise)).square().mean().backward()
        return loss.realize(*optimizer.schedule_step(), *schedule.schedule_step())

    @TinyJit
    def moved(images: Tensor, time: Tensor) -> Tensor:
        return images + model(images, time.expand(DRAWINGS)) / options.moves

    options.folder.mkdir(parents=True, exist_ok=True)
    write_png(options.folder / "data.png", shapes(DRAWINGS))
    noise = Tensor.randn(DRAWINGS, 1, SIDE, SIDE).realize()
    times = [Tensor([(move + 0.5) / options.moves]).realize() for move in range(options.moves)]
    every = max(options.steps // options.pictures, 1)
    start, losses = time.perf_counter(), []
    for step in (progress := trange(1, options.steps + 1, disable=None)):
        losses.append(train_step().item())
        progress.set_description(f"loss {losses[-1]:5.3f}")
        if step % every == 0 or step == options.steps:
            drawings = noise
            for now in times:
                drawings = moved(drawings, now)
            write_png(options.folder / f"step-{step:05}.png", drawings)
    seconds = time.perf_counter() - start
    first, last = (sum(some) / len(some) for some in (losses[:10], losses[-10:]))
    print(f"{options.steps} steps in {seconds:.1f} s, loss {first:.3f} -> {last:.3f}")
    print(f"see {options.folder}/step-*.png beside {options.folder}/data.png")
    print(f"its timeline: VIZ=2 python {sys.argv[0]}")


if __name__ == "__main__":
    main()
