"""Processor time of Python in the first step of a training: schedule, plan, lower and render.

    python -m benchmarks.cold [unet] [resnet18] [gpt]

Nothing is compiled or run, and no cache helps. Each line has seconds of the thread, the kernels
and a hash of all source text, so that a change that is said to be about time alone can show it.
"""

from __future__ import annotations

import hashlib
import os
import pkgutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

os.environ["CCACHE"] = "0"

from tinycore import Context, Device, Tensor, nn
from tinycore._collector import without_collecting
from tinycore.lower.pipeline import lower
from tinycore.uop.op import Op

Step = Callable[[], Any]


def embedding(times: Tensor, width: int) -> Tensor:
    """Sinusoidal embedding of time steps."""
    frequencies = (Tensor.arange(width // 2) * (-9.21 / (width // 2))).exp()
    angles = times.reshape(-1, 1) * frequencies.reshape(1, -1)
    return angles.sin().cat(angles.cos(), dim=1)


class Residual:
    """Two convolutions with group normalization, a time embedding and a skip connection."""

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        self.norm1, self.conv1 = nn.GroupNorm(8, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(width, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        y = self.conv1(self.norm1(x).silu())
        y = y + self.time(t.silu()).reshape(x.shape[0], -1, 1, 1)
        y = self.conv2(self.norm2(y).silu())
        return y + (x if self.skip is None else self.skip(x))


class Attention:
    """Self-attention over the places of an image."""

    def __init__(self, channels: int, heads: int = 4) -> None:
        self.norm, self.heads = nn.GroupNorm(8, channels), heads
        self.mixed, self.out = (
            nn.Conv2d(channels, 3 * channels, 1),
            nn.Conv2d(channels, channels, 1),
        )

    def __call__(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        mixed = self.mixed(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w)
        q, k, v = (mixed[:, i].transpose(-1, -2) for i in range(3))
        y = q.scaled_dot_product_attention(k, v).transpose(-1, -2).reshape(b, c, h, w)
        return x + self.out(y)


class UNet:
    """A small U-Net of the kind that diffusion models train."""

    def __init__(self, channels: tuple[int, ...] = (32, 64, 128), width: int = 128) -> None:
        first = channels[0]
        self.width = width
        self.time1, self.time2 = nn.Linear(first, width), nn.Linear(width, width)
        self.begin = nn.Conv2d(3, first, 3, padding=1)
        self.down: list[tuple[Any, ...]] = []
        self.up: list[tuple[Any, ...]] = []
        now = first
        for level, c in enumerate(channels):
            rest = [Residual(now, c, width), Residual(c, c, width)]
            smaller = nn.Conv2d(c, c, 3, stride=2, padding=1) if level < len(channels) - 1 else None
            self.down.append((*rest, smaller))
            now = c
        self.middle = (Residual(now, now, width), Attention(now), Residual(now, now, width))
        for level, c in reversed(list(enumerate(channels))):
            rest = [Residual(now + c, c, width), Residual(c, c, width)]
            larger = nn.Conv2d(c, c, 3, padding=1) if level else None
            self.up.append((*rest, larger))
            now = c
        self.norm, self.end = nn.GroupNorm(8, now), nn.Conv2d(now, 3, 3, padding=1)

    def __call__(self, x: Tensor, times: Tensor) -> Tensor:
        t = self.time2(self.time1(embedding(times, self.begin.weight.shape[0])).silu())
        x, kept = self.begin(x), []
        for first, second, smaller in self.down:
            x = second(first(x, t), t)
            kept.append(x)
            x = x if smaller is None else smaller(x)
        first, attention, second = self.middle
        x = second(attention(first(x, t)), t)
        for first, second, larger in self.up:
            x = second(first(x.cat(kept.pop(), dim=1), t), t)
            if larger is not None:
                x = larger(x.interpolate((x.shape[2] * 2, x.shape[3] * 2), mode="nearest"))
        return self.end(self.norm(x).silu())


class Block:
    """A basic block of a ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm(outputs), nn.BatchNorm(outputs)
        self.skip: tuple[Any, ...] = ()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.skip = (conv, nn.BatchNorm(outputs))

    def __call__(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (y + x.sequential(list(self.skip))).relu()


class ResNet18:
    """ResNet-18 for images of 32x32."""

    def __init__(self) -> None:
        self.begin, self.norm = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm(64)
        wide = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        self.blocks = [b for i, o, s in wide for b in (Block(i, o, s), Block(o, o, 1))]
        self.end = nn.Linear(512, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(self.begin(x)).relu().sequential(list(self.blocks))
        return self.end(x.mean((2, 3)))


def with_memory(net: Any) -> list[Tensor]:
    """The weights of a network, all in memory."""
    weights = nn.state.get_parameters(net)
    Tensor.realize(*weights)
    return weights


def unet() -> Step:
    """A step of diffusion: noise predicted, Adam."""
    net = UNet()
    optimizer = nn.optim.Adam(with_memory(net), lr=1e-3)
    x, noise = Tensor.empty(8, 3, 32, 32), Tensor.empty(8, 3, 32, 32)
    times = Tensor.empty(8)

    @Tensor.train()
    def step() -> Tensor:
        optimizer.zero_grad()
        loss = (net(x + noise, times) - noise).square().mean().backward()
        return loss.realize(*optimizer.schedule_step())

    return step


def resnet18() -> Step:
    """A step of classification, batch 32, momentum."""
    net = ResNet18()
    optimizer = nn.optim.SGD(with_memory(net), lr=0.1, momentum=0.9, weight_decay=5e-4)
    x, labels = Tensor.empty(32, 3, 32, 32), Tensor.zeros(32, dtype="int32").contiguous()

    @Tensor.train()
    def step() -> Tensor:
        optimizer.zero_grad()
        loss = net(x).sparse_categorical_crossentropy(labels).backward()
        return loss.realize(*optimizer.schedule_step())

    return step


class Layer:
    """A layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def __call__(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        mixed = self.mixed(self.norm1(x)).reshape(b, n, 3, self.heads, c // self.heads)
        q, k, v = (mixed[:, :, i].transpose(1, 2) for i in range(3))
        y = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(b, n, c)
        x = x + self.out(y)
        return x + self.second(self.first(self.norm2(x)).gelu())


class Gpt:
    """A small language model."""

    def __init__(self, words: int = 1000, width: int = 256, layers: int = 6) -> None:
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(256, width)
        self.layers = [Layer(width, 8) for _ in range(layers)]
        self.norm, self.end = nn.LayerNorm(width), nn.Linear(width, words)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.words(x) + self.places(Tensor.arange(x.shape[1]))
        return self.end(self.norm(x.sequential(list(self.layers))))


def gpt() -> Step:
    """A step of a language model, AdamW."""
    net = Gpt()
    optimizer = nn.optim.AdamW(with_memory(net), lr=1e-3)
    x = Tensor.zeros(8, 256, dtype="int32").contiguous()

    @Tensor.train()
    def step() -> Tensor:
        optimizer.zero_grad()
        loss = net(x).sparse_categorical_crossentropy(x).backward()
        return loss.realize(*optimizer.schedule_step())

    return step


MODELS: Final[dict[str, Callable[[], Step]]] = {"unet": unet, "resnet18": resnet18, "gpt": gpt}


def kernels_of(name: str) -> tuple[float, list[Any]]:
    """Seconds of the frontend and the scheduler in one step, and its launches."""
    found: list[Any] = []

    def note(items: Iterable[Any], values: Mapping[str, int] | None = None) -> list[Any]:
        found.extend(items)
        return []

    engine: Any = pkgutil.resolve_name("tinycore.engine.engine")
    runs = engine.run_schedule, engine.announce
    engine.run_schedule = engine.announce = note
    try:
        step = MODELS[name]()
        found.clear()
        began = time.thread_time()
        step()
        seconds = time.thread_time() - began
    finally:
        engine.run_schedule, engine.announce = runs
    return seconds, found


def measured(name: str) -> str:
    """A line of the table."""
    scheduling, items = kernels_of(name)
    kernels = list(dict.fromkeys(item.ast for item in items if item.ast.op is not Op.COPY))
    renderer = Device[Device.DEFAULT].toolchain.renderer
    with without_collecting:  # as compilation has it
        began = time.thread_time()
        linear = [lower(ast, renderer, "kernel") for ast in kernels]
        lowered = time.thread_time()
        text = "\n".join(map(renderer.render, linear))
        rendered = time.thread_time()
    times = (scheduling, lowered - began, rendered - lowered)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return (
        f"{name:<9} {len(items):4} launches {len(kernels):4} kernels  scheduled {times[0]:6.2f} s  "
        f"lowered {times[1]:6.2f} s  rendered {times[2]:5.2f} s  sum {sum(times):6.2f} s  {digest}"
    )


def main() -> None:
    """Print a line for each model that is named, or for all."""
    with Context(VERIFY=0):
        for name in sys.argv[1:] or MODELS:
            print(measured(name), flush=True)


if __name__ == "__main__":
    main()
