"""Recurrent networks: RNN, GRU and LSTM, in one or both directions, with lengths of sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tiny_onnx.call import Call
from tiny_onnx.registry import operator
from tiny_onnx.values import Data
from tinycore import Tensor, dtypes


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation by its name, with the two numbers that some of them take."""

    name: str
    alpha: float | None
    beta: float | None

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the activation of each element."""
        alpha, beta = self.alpha, self.beta
        match self.name.lower():
            case "sigmoid":
                return x.sigmoid()
            case "tanh":
                return x.tanh()
            case "relu":
                return x.relu()
            case "affine":
                return x * (1.0 if alpha is None else alpha) + (beta or 0.0)
            case "leakyrelu":
                return x.leaky_relu(0.01 if alpha is None else alpha)
            case "thresholdedrelu":
                return (x > (1.0 if alpha is None else alpha)).where(x, 0)
            case "scaledtanh":
                return (1.0 if alpha is None else alpha) * (
                    (1.0 if beta is None else beta) * x
                ).tanh()
            case "hardsigmoid":
                return (
                    x * (0.2 if alpha is None else alpha) + (0.5 if beta is None else beta)
                ).clip(0, 1)
            case "elu":
                return x.elu(1.0 if alpha is None else alpha)
            case "softsign":
                return x.softsign()
            case "softplus":
                return x.softplus()
        raise ValueError(f"there is no activation {self.name!r}")


TAKES_ALPHA = {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
TAKES_BETA = {"affine", "scaledtanh", "hardsigmoid"}


def activations(call: Call, default: Sequence[str], directions: int) -> list[list[Activation]]:
    """Activations of each direction, to which `activation_alpha` and `_beta` belong in order."""
    names = call.get("activations", list(default) * directions)
    alphas, betas = (iter(call.get(f"activation_{which}", [])) for which in ("alpha", "beta"))
    every = [
        Activation(
            name,
            next(alphas, None) if name.lower() in TAKES_ALPHA else None,
            next(betas, None) if name.lower() in TAKES_BETA else None,
        )
        for name in names
    ]
    each = len(default)
    return [every[index * each : (index + 1) * each] for index in range(directions)]


@dataclass(slots=True)
class Direction:
    """Weights of one direction, and what it remembers between steps: (batch, hidden) each."""

    inputs: Tensor
    recurrent: Tensor
    bias: Tensor
    recurrent_bias: Tensor
    functions: list[Activation]
    state: list[Tensor]
    index: int


Step = Callable[[Direction, Tensor], list[Tensor]]
"""The next state from a direction and the products of a step's input with its weights."""


def clipped(call: Call, x: Tensor) -> Tensor:
    """Pre-activation within the bound that the node gives."""
    bound = call.get("clip", None)
    return x if bound is None else x.clip(-bound, bound)


def unrolled(call: Call, gates: int, default: Sequence[str], states: int, step: Step) -> list[Data]:
    """All outputs of a recurrent node: each step's state, then the last of each state."""
    x, weights, recurrent = call.tensor(0), call.tensor(1), call.tensor(2)
    is_batch_first = bool(call.get("layout", 0))
    x = x.transpose(0, 1) if is_batch_first else x
    length, batch = int(x.shape[0]), int(x.shape[1])
    hidden, count = int(recurrent.shape[2]), int(weights.shape[0])
    bias = call.optional(3)
    if bias is None:
        bias = Tensor.zeros(count, 2 * gates * hidden, dtype=x.dtype, device=x.device)
    functions = activations(call, default, count)
    kind = call.get("direction", "forward")
    lengths = call.optional(4)
    outputs, last = [], []
    for index in range(count):
        begin = []
        for position in range(states):
            given = call.optional(5 + position)
            if given is None:
                begin.append(Tensor.zeros(batch, hidden, dtype=x.dtype, device=x.device))
            else:
                begin.append(given[:, index] if is_batch_first else given[index])
        direction = Direction(
            weights[index], recurrent[index], bias[index, : gates * hidden],
            bias[index, gates * hidden :], functions[index], begin, index,
        )  # fmt: skip
        is_reversed = kind == "reverse" or index == 1
        call.run.spend(length)
        outputs.append(run(direction, x, lengths, is_reversed, step))
        last.append(direction.state)
    every = Tensor.stack(*[Tensor.stack(*each) for each in outputs], dim=1)
    ends = [Tensor.stack(*[each[position] for each in last]) for position in range(states)]
    if is_batch_first:
        every = every.permute(2, 0, 1, 3)
        ends = [each.transpose(0, 1) for each in ends]
    assert length == len(outputs[0])
    return [every, *ends]


def run(
    direction: Direction, x: Tensor, lengths: Tensor | None, is_reversed: bool, step: Step
) -> list[Tensor]:
    """The hidden state after each step of one direction; `direction.state` ends as the last.

    Beyond the length of a sequence its state stays, and its output is zero.
    """
    # stored: of two products in one kernel, the tiler makes vectors of one alone
    products = (x.matmul(direction.inputs.transpose()) + direction.bias).contiguous()
    count = int(x.shape[0])
    outputs: list[Tensor | None] = [None] * count
    for time in reversed(range(count)) if is_reversed else range(count):
        new = step(direction, products[time])
        output = new[0]
        if lengths is not None:
            is_inside = (lengths.cast(dtypes.int32) > time).reshape(-1, 1)
            output = is_inside.where(output, 0)
            new = [is_inside.where(a, b) for a, b in zip(new, direction.state, strict=True)]
        direction.state = new
        outputs[time] = output
    return [each for each in outputs if each is not None]


def recurrent_product(direction: Direction, hidden: Tensor, first: int, last: int) -> Tensor:
    """The hidden state by rows of the recurrent weights, gates `first` to `last`, with bias."""
    size = int(hidden.shape[1])
    rows = slice(first * size, last * size)
    return hidden.matmul(direction.recurrent[rows].transpose()) + direction.recurrent_bias[rows]


@operator("RNN")
def rnn(call: Call) -> tuple[Data, ...]:
    """A network whose state is an activation of its input and its state before."""

    def step(direction: Direction, given: Tensor) -> list[Tensor]:
        (hidden,) = direction.state
        total = given + recurrent_product(direction, hidden, 0, 1)
        return [direction.functions[0](clipped(call, total))]

    return tuple(unrolled(call, 1, ["Tanh"], 1, step))


@operator("GRU")
def gru(call: Call) -> tuple[Data, ...]:
    """Gated recurrent units (Cho et al., 2014), gates in the order update, reset, hidden."""
    is_linear_first = bool(call.get("linear_before_reset", 0))

    def step(direction: Direction, given: Tensor) -> list[Tensor]:
        (hidden,) = direction.state
        size = int(hidden.shape[1])
        gate, activate = direction.functions
        both = given[:, : 2 * size] + recurrent_product(direction, hidden, 0, 2)
        both = gate(clipped(call, both))
        update, reset = both[:, :size], both[:, size:]
        if is_linear_first:
            recalled = reset * recurrent_product(direction, hidden, 2, 3)
        else:
            recalled = recurrent_product(direction, reset * hidden, 2, 3)
        new = activate(clipped(call, given[:, 2 * size :] + recalled))
        return [(1 - update) * new + update * hidden]

    return tuple(unrolled(call, 3, ["Sigmoid", "Tanh"], 1, step))


@operator("LSTM")
def lstm(call: Call) -> tuple[Data, ...]:
    """Long short-term memory (Hochreiter and Schmidhuber, 1997), gates in the order i, o, f, c."""
    peepholes = call.optional(7)
    is_coupled = bool(call.get("input_forget", 0))

    def step(direction: Direction, given: Tensor) -> list[Tensor]:
        hidden, cell = direction.state
        size = int(hidden.shape[1])
        gate, activate, emit = direction.functions
        total = given + recurrent_product(direction, hidden, 0, 4)
        parts = [total[:, place * size : (place + 1) * size] for place in range(4)]
        if peepholes is not None:
            peeks = [
                peepholes[direction.index, place * size : (place + 1) * size] for place in range(3)
            ]
            parts[0] = parts[0] + peeks[0] * cell
            parts[2] = parts[2] + peeks[2] * cell
        entering = gate(clipped(call, parts[0]))
        forgotten = 1 - entering if is_coupled else gate(clipped(call, parts[2]))
        cell = forgotten * cell + entering * activate(clipped(call, parts[3]))
        if peepholes is not None:
            parts[1] = parts[1] + peeks[1] * cell
        return [gate(clipped(call, parts[1])) * emit(cell), cell]

    return tuple(unrolled(call, 4, ["Sigmoid", "Tanh", "Tanh"], 2, step))
