"""MobileNetV2 (Sandler et al., 2018) as an ONNX model, from the weights of a torch checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
import onnx
from graphs import model, value
from onnx import helper

BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
          (6, 320, 1, 1))  # fmt: skip
"""Expansion, channels, repetitions and stride of each group of inverted residuals."""


class Layers:
    """Nodes and weights of a network under construction."""

    def __init__(self, state: Mapping[str, numpy.ndarray]) -> None:
        self.state = state
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, numpy.ndarray] = {}

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node of one output, whose name is returned."""
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], **attributes))
        return output

    def take(self, name: str) -> str:
        """A weight of the checkpoint."""
        self.weights[name] = self.state[name]
        return name

    def convolution(self, x: str, weight: str, norm: str, stride: int, is_linear: bool) -> str:
        """Convolution and batch normalization, and ReLU6 unless it is linear."""
        shape = self.state[f"{weight}.weight"].shape
        groups = shape[0] if shape[1] == 1 and shape[0] > 1 else 1
        side = shape[2] // 2
        x = self.add(
            "Conv", x, self.take(f"{weight}.weight"), strides=[stride] * 2, pads=[side] * 4,
            group=groups,
        )  # fmt: skip
        statistics = ("weight", "bias", "running_mean", "running_var")
        x = self.add("BatchNormalization", x, *[self.take(f"{norm}.{each}") for each in statistics])
        return x if is_linear else self.add("Clip", x, "zero", "six")


def mobilenet(state: Mapping[str, numpy.ndarray]) -> onnx.ModelProto:
    """The network for pictures of 224 x 224."""
    layers = Layers(state)
    layers.weights |= {"zero": numpy.array(0, "float32"), "six": numpy.array(6, "float32")}
    x = layers.convolution("image", "features.0.0", "features.0.1", 2, is_linear=False)
    place, channels = 1, 32
    for expansion, width, count, first in BLOCKS:
        for repeat in range(count):
            stride, begin, block = first if repeat == 0 else 1, x, f"features.{place}.conv"
            part = 0
            if expansion > 1:
                x = layers.convolution(x, f"{block}.0.0", f"{block}.0.1", 1, is_linear=False)
                part = 1
            x = layers.convolution(
                x, f"{block}.{part}.0", f"{block}.{part}.1", stride, is_linear=False
            )
            x = layers.convolution(
                x, f"{block}.{part + 1}", f"{block}.{part + 2}", 1, is_linear=True
            )
            x = layers.add("Add", begin, x) if stride == 1 and channels == width else x
            place, channels = place + 1, width
    x = layers.convolution(x, "features.18.0", "features.18.1", 1, is_linear=False)
    x = layers.add("Flatten", layers.add("GlobalAveragePool", x))
    head = [layers.take(f"classifier.1.{each}") for each in ("weight", "bias")]
    layers.nodes.append(helper.make_node("Gemm", [x, *head], ["scores"], transB=1))
    return model(
        layers.nodes,
        [value("image", ["n", 3, 224, 224])],
        [value("scores", ["n", 1000])],
        layers.weights,
    )
