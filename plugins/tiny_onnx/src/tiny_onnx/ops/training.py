"""Steps of optimizers, and gradients of parts of the graph (ai.onnx.preview.training)."""

from __future__ import annotations

from collections.abc import Callable

from tiny_onnx.call import Call
from tiny_onnx.registry import operator
from tiny_onnx.values import Data, as_tensor
from tinycore import Tensor

TRAINING = "ai.onnx.preview.training"
Update = Callable[[Call, Tensor, Tensor, list[Tensor]], list[Tensor]]
"""The new tensor and its new states, of a tensor, its gradient and its states."""


def stepped(call: Call, states: int, update: Update) -> tuple[Data, ...]:
    """An optimizer's step of all tensors; inputs and outputs are grouped by kind."""
    count = (len(call) - 2) // (2 + states)
    groups = [
        call.tensors()[2 + kind * count : 2 + (kind + 1) * count] for kind in range(2 + states)
    ]
    results = [update(call, x, g, list(rest)) for x, g, *rest in zip(*groups, strict=True)]
    return tuple(each for kind in zip(*results, strict=True) for each in kind)


@operator("Adagrad", domain=TRAINING)
def adagrad(call: Call) -> tuple[Data, ...]:
    """Duchi et al., 2011."""

    def update(call: Call, x: Tensor, g: Tensor, states: list[Tensor]) -> list[Tensor]:
        rate = call.tensor(0) / (1 + call.tensor(1) * call.real("decay_factor", 0.0))
        g = g + call.real("norm_coefficient", 0.0) * x
        h = states[0] + g * g
        return [x - rate * g / (h.sqrt() + call.real("epsilon", 1e-6)), h]

    return stepped(call, 1, update)


@operator("Adam", domain=TRAINING)
def adam(call: Call) -> tuple[Data, ...]:
    """The method of Kingma and Ba, 2015 (Adam), with decoupled decay after the step."""

    def update(call: Call, x: Tensor, g: Tensor, states: list[Tensor]) -> list[Tensor]:
        alpha, beta = call.real("alpha", 0.9), call.real("beta", 0.999)
        g = g + call.real("norm_coefficient", 0.0) * x
        v, h = alpha * states[0] + (1 - alpha) * g, beta * states[1] + (1 - beta) * g * g
        step = call.tensor(1).cast(x.dtype)
        scaled = (1 - beta**step).sqrt() / (1 - alpha**step)
        rate = (step > 0).where(call.tensor(0) * scaled, call.tensor(0))
        new = x - rate * v / (h.sqrt() + call.real("epsilon", 1e-6))
        return [(1 - call.real("norm_coefficient_post", 0.0)) * new, v, h]

    return stepped(call, 2, update)


@operator("Momentum", domain=TRAINING)
def momentum(call: Call) -> tuple[Data, ...]:
    """Steps along a decaying mean of gradients, standard or Nesterov's."""

    def update(call: Call, x: Tensor, g: Tensor, states: list[Tensor]) -> list[Tensor]:
        alpha = call.real("alpha")
        g = g + call.real("norm_coefficient") * x
        beta = (call.tensor(1) > 0).where(call.real("beta"), 1.0)
        v = alpha * states[0] + beta * g
        direction = g + alpha * v if call.get("mode") == "nesterov" else v
        return [x - call.tensor(0) * direction, v]

    return stepped(call, 1, update)


@operator("Gradient", domain=TRAINING)
def gradient(call: Call) -> tuple[Data, ...]:
    """The gradients of a value of the graph by others."""
    leaves = [as_tensor(call.scope[name].data, call.run.device) for name in call.get("xs")]
    value = as_tensor(call.scope[call.get("y")].data, call.run.device)
    return tuple(value.sum().gradient(*leaves))
