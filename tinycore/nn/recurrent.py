"""Recurrent layers and cells.

Floor 6. Imports the public API and the errors.
A step is one function of the inputs, already multiplied by their weights, and the state before.
Gates lie one after another along the last axis, in torch's order, and weights have torch's names,
so that its checkpoints load. A sequence is unrolled: its graph grows with its length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, Generic, Literal, NamedTuple, TypeVar

from tinycore import Tensor
from tinycore.errors import ArgumentError, ShapeError
from tinycore.nn.dropout import probability
from tinycore.nn.initializers import inverse_root_uniform, positive_sizes, verify_input
from tinycore.tensor.methods.templates import templated

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]

Pair = tuple[Tensor, Tensor]
State = TypeVar("State", Tensor, Pair)
Nonlinearity = Literal["tanh", "relu"]


class Weights(NamedTuple):
    """Weights of one step: of inputs (G*H, F) and state (G*H, H), and their biases (G*H,)."""

    inputs: Tensor
    state: Tensor
    input_bias: Tensor | None
    state_bias: Tensor | None

    @classmethod
    def drawn(cls, gates: int, inputs: int, hidden: int, bias: bool) -> Weights:
        """All uniform within 1/sqrt(hidden)."""
        rows = gates * hidden
        shapes = ((rows, inputs), (rows, hidden), (rows,), (rows,))
        drawn = [inverse_root_uniform(s, hidden) if bias or len(s) > 1 else None for s in shapes]
        return cls(*drawn)  # type: ignore[arg-type]  # matrices are always there

    def of_inputs(self, x: Tensor) -> Tensor:
        """(.., F) -> (.., G*H)."""
        return x.linear(self.inputs.transpose(), self.input_bias)

    def of_state(self, hidden: Tensor) -> Tensor:
        """(.., H) -> (.., G*H)."""
        return hidden.linear(self.state.transpose(), self.state_bias)


def plain_step(x: Tensor, hidden: Tensor, weights: Weights, nonlinearity: Nonlinearity) -> Tensor:
    """h' = tanh(x W + h U), after Elman, 1990; or relu in place of tanh."""
    total = x + weights.of_state(hidden)
    return total.relu() if nonlinearity == "relu" else total.tanh()


def gated_step(x: Tensor, hidden: Tensor, weights: Weights) -> Tensor:
    """The gated recurrent unit, https://arxiv.org/abs/1406.1078: reset, update, new.

    The reset gate scales what the state contributes to the new value after its bias was added.
    """
    return gated(hidden, x, weights.of_state(hidden))


@templated
def gated(hidden: Tensor, of_inputs: Tensor, of_state: Tensor) -> Tensor:
    """The next state by the gates of inputs and state."""
    (reset, update, new), (from_reset, from_update, from_new) = (
        gates.chunk(3, dim=-1) for gates in (of_inputs, of_state)
    )
    keep = (update + from_update).sigmoid()
    fresh = (new + (reset + from_reset).sigmoid() * from_new).tanh()
    return fresh + keep * (hidden - fresh)


def long_short_step(x: Tensor, state: Pair, weights: Weights) -> Pair:
    """Long short-term memory with a forget gate (Gers, Schmidhuber and Cummins, 2000).

    The gates are input, forget, cell and output; the state is hidden and cell.
    """
    hidden, cell = state
    return remembered(cell, x, weights.of_state(hidden))


@templated
def remembered(cell: Tensor, of_inputs: Tensor, of_state: Tensor) -> Pair:
    """The next state by the gates of inputs and state."""
    inward, forget, new, outward = (of_inputs + of_state).chunk(4, dim=-1)
    cell = forget.sigmoid() * cell + inward.sigmoid() * new.tanh()
    return outward.sigmoid() * cell.tanh(), cell


NONLINEARITIES: Final = ("tanh", "relu")


def known_nonlinearity(layer: str, nonlinearity: Nonlinearity) -> Nonlinearity:
    """The word itself. Raises ArgumentError for an unknown one."""
    if nonlinearity not in NONLINEARITIES:
        raise ArgumentError(f"{layer}: nonlinearity is 'tanh' or 'relu', not {nonlinearity!r}")
    return nonlinearity


def zeros(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A state before the first input."""
    return Tensor.zeros(*shape, dtype=x.dtype, device=x.device, buffer=False)


# --- cells


class Cell(Generic[State]):
    """Base of all cells: weights under torch's names, and checks of the inputs."""

    gates: ClassVar[int] = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        positive_sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size = input_size, hidden_size
        self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh = Weights.drawn(
            self.gates, input_size, hidden_size, bias
        )

    def weights(self) -> Weights:
        """The four together."""
        return Weights(self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)

    def projected(self, x: Tensor) -> Tensor:
        """The inputs times their weights. Raises ShapeError when `x` has other features."""
        verify_input(self, x)
        if not x.ndim or x.shape[-1] != self.input_size:
            raise ShapeError(
                f"{type(self).__name__} of {self.input_size} features cannot take {x.shape}"
            )
        return self.weights().of_inputs(x)

    def started(self, x: Tensor, hidden: Tensor | None) -> Tensor:
        """The state given, or zeros. Raises ShapeError when it does not belong to `x`."""
        verify_input(self, x)
        wanted = (*x.shape[:-1], self.hidden_size)
        if hidden is None:
            return zeros(x, wanted)
        if hidden.shape != wanted:
            raise ShapeError(
                f"{type(self).__name__}: a state of shape {hidden.shape} where inputs {x.shape} "
                f"need {wanted}"
            )
        return hidden


class RNNCell(Cell[Tensor]):
    """One step of a plain recurrent network: x (.., input_size), h -> h' (.., hidden_size).

    h' = tanh(x W + h U), or with "relu" in place of tanh. Without `h` the state is zeros.
    All weights start uniform within 1/sqrt(hidden_size).
    Raises ArgumentError for another nonlinearity or a size that is not positive.

    >>> nn.RNNCell(3, 4)(Tensor.zeros(2, 3)).shape
    (2, 4)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: Nonlinearity = "tanh",
    ) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.nonlinearity = known_nonlinearity("RNNCell", nonlinearity)

    def __call__(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        """Raises ShapeError when `x` or `h` do not fit."""
        state = self.started(x, h)
        return plain_step(self.projected(x), state, self.weights(), self.nonlinearity)


class GRUCell(Cell[Tensor]):
    """One step of a gated recurrent unit: x (.., input_size), h -> h' (.., hidden_size).

    Without `h` the state is zeros. All weights start uniform within 1/sqrt(hidden_size).
    Raises ArgumentError for a size that is not positive.

    >>> nn.GRUCell(3, 4)(Tensor.zeros(2, 3)).shape
    (2, 4)
    """

    gates = 3

    def __call__(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        """Raises ShapeError when `x` or `h` do not fit."""
        return gated_step(self.projected(x), self.started(x, h), self.weights())


class LSTMCell(Cell[Pair]):
    """One step of long short-term memory: x (.., input_size), (h, c) -> (h', c').

    Hidden and cell state are (.., hidden_size), zeros when not given. All weights start uniform
    within 1/sqrt(hidden_size). Raises ArgumentError for a size that is not positive.

    >>> h, c = nn.LSTMCell(3, 4)(Tensor.zeros(2, 3))
    >>> h.shape, c.shape
    ((2, 4), (2, 4))
    """

    gates = 4

    def __call__(self, x: Tensor, hc: Pair | None = None) -> Pair:
        """Raises ShapeError when `x` or a state do not fit."""
        hidden, cell = (None, None) if hc is None else hc
        state = self.started(x, hidden), self.started(x, cell)
        return long_short_step(self.projected(x), state, self.weights())


# --- whole sequences


class Recurrent(Generic[State]):
    """Base of recurrent stacks: layers of one kind of step, walked in one direction or both.

    x (length, batch, input_size), or (batch, length, input_size) with `batch_first`, or without
    a batch (length, input_size), gives all hidden states of the last layer, forward and backward
    ones side by side, and the last state of every layer and direction, (layers*directions, batch,
    hidden_size). Between layers `dropout` forgets, in training. Weights are `weight_ih_l0`,
    `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, and so on, with `_reverse` for the way back.

    Raises ArgumentError for sizes or a probability out of range.
    """

    gates: ClassVar[int] = 1
    input_size: int
    hidden_size: int
    num_layers: int
    batch_first: bool
    dropout: float
    bidirectional: bool

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        name = type(self).__name__
        positive_sizes(name, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first, self.dropout = batch_first, probability(name, dropout)
        self.bidirectional = bidirectional
        for layer in range(num_layers):
            inputs = hidden_size * self._directions if layer else input_size
            for suffix in self._suffixes(layer):
                drawn = Weights.drawn(self.gates, inputs, hidden_size, bias)
                for kind, weight in zip(WEIGHT_NAMES, drawn, strict=True):
                    setattr(self, kind + suffix, weight)

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self._directions]

    def _weights(self, suffix: str) -> Weights:
        return Weights(*(getattr(self, kind + suffix) for kind in WEIGHT_NAMES))

    def _step(self, x: Tensor, state: State, weights: Weights) -> State:
        """The state after one more input."""
        raise NotImplementedError

    def _walked(
        self, x: Tensor, state: list[State], hidden: Callable[[State], Tensor]
    ) -> tuple[Tensor, list[State]]:
        """Outputs (length, batch, directions*H) and last states, from x (length, batch, F)."""
        last: list[State] = []
        for layer in range(self.num_layers):
            x = x.dropout(self.dropout) if layer else x
            ways = []
            for backward, suffix in enumerate(self._suffixes(layer)):
                weights = self._weights(suffix)
                inputs = weights.of_inputs(x)
                now, seen = state[len(last)], []
                for time in range(x.shape[0])[:: -1 if backward else 1]:
                    now = self._step(inputs[time], now, weights)
                    seen.append(hidden(now))
                ways.append(Tensor.stack(*seen[:: -1 if backward else 1]))
                last.append(now)
            x = ways[0].cat(*ways[1:], dim=-1)
        return x, last

    def _batched(self, x: Tensor) -> Tensor:
        """(length, batch, features). Raises ShapeError for anything that is no such sequence."""
        verify_input(self, x)
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size or 0 in x.shape:
            raise ShapeError(
                f"{type(self).__name__} of {self.input_size} features cannot take {x.shape}; it "
                f"takes {'(batch, length' if self.batch_first else '(length, batch'}, features)"
            )
        if x.ndim == 2:
            return x.unsqueeze(1)
        return x.transpose(0, 1) if self.batch_first else x

    def _unbatched(self, outputs: Tensor, ndim: int) -> Tensor:
        """Outputs in the layout that the inputs had."""
        if ndim == 2:
            return outputs.squeeze(1)
        return outputs.transpose(0, 1) if self.batch_first else outputs

    def _started(self, x: Tensor, given: Tensor | None, ndim: int) -> list[Tensor]:
        """A state for each layer and direction. Raises ShapeError when they do not fit."""
        count = self.num_layers * self._directions
        wanted = (count, x.shape[1], self.hidden_size)
        if given is None:
            return [zeros(x, wanted[1:])] * count
        batched = given.unsqueeze(1) if ndim == 2 and given.ndim == 2 else given
        if batched.shape != wanted:
            raise ShapeError(
                f"{type(self).__name__}: a state of shape {given.shape} where "
                f"{wanted if ndim == 3 else (count, self.hidden_size)} is needed"
            )
        return [batched[place] for place in range(count)]

    def _last(self, states: list[Tensor], ndim: int) -> Tensor:
        """The last states in one tensor."""
        stacked = Tensor.stack(*states)
        return stacked.squeeze(1) if ndim == 2 else stacked


WEIGHT_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
"""The names of the fields of `Weights`, as checkpoints have them."""


class OneState(Recurrent[Tensor]):
    """A stack whose state is one tensor."""

    def __call__(self, x: Tensor, h: Tensor | None = None) -> Pair:
        """All hidden states and the last ones. Raises ShapeError when `x` or `h` do not fit."""
        sequence = self._batched(x)
        outputs, last = self._walked(sequence, self._started(sequence, h, x.ndim), lambda s: s)
        return self._unbatched(outputs, x.ndim), self._last(last, x.ndim)


class RNN(OneState):
    """Plain recurrent layers, steps as in `RNNCell`; see `Recurrent` for shapes and names."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Nonlinearity = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        self.nonlinearity = known_nonlinearity("RNN", nonlinearity)
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        )

    def _step(self, x: Tensor, state: Tensor, weights: Weights) -> Tensor:
        return plain_step(x, state, weights, self.nonlinearity)


class GRU(OneState):
    """Layers of gated recurrent units, steps as in `GRUCell`; see `Recurrent`.

    >>> out, h = nn.GRU(3, 4, bidirectional=True)(Tensor.zeros(5, 2, 3))
    >>> out.shape, h.shape
    ((5, 2, 8), (2, 2, 4))
    """

    gates = 3

    def _step(self, x: Tensor, state: Tensor, weights: Weights) -> Tensor:
        return gated_step(x, state, weights)


class LSTM(Recurrent[Pair]):
    """Layers of long short-term memory, steps as in `LSTMCell`; see `Recurrent`.

    The state is a pair, hidden and cell, each (layers*directions, batch, hidden_size).

    >>> out, (h, c) = nn.LSTM(3, 4, num_layers=2)(Tensor.zeros(5, 2, 3))
    >>> out.shape, h.shape, c.shape
    ((5, 2, 4), (2, 2, 4), (2, 2, 4))
    """

    gates = 4

    def _step(self, x: Tensor, state: Pair, weights: Weights) -> Pair:
        return long_short_step(x, state, weights)

    def __call__(self, x: Tensor, hc: Pair | None = None) -> tuple[Tensor, Pair]:
        """All hidden states, and the last pair. Raises ShapeError when `x` or `hc` do not fit."""
        sequence = self._batched(x)
        hidden, cell = (None, None) if hc is None else hc
        starts = (self._started(sequence, state, x.ndim) for state in (hidden, cell))
        pairs = list(zip(*starts, strict=True))
        outputs, last = self._walked(sequence, pairs, lambda pair: pair[0])
        states = self._last([h for h, _ in last], x.ndim), self._last([c for _, c in last], x.ndim)
        return self._unbatched(outputs, x.ndim), states
