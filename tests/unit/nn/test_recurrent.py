"""Recurrent cells and layers walk as torch's do, forward and back."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from tests.unit.nn.helpers import assert_same, copied, weights_of
from tests.unit.tensor.helpers import Array, numbers
from tinycore import Context, Tensor, TinyJit, dtypes, nn
from tinycore.errors import ArgumentError, ShapeError
from tinycore.nn.state import get_state_dict

FAST = [dtypes.float32]


def states(count: int, *shape: int) -> list[Array]:
    return [numbers(*shape, seed=seed + 1) for seed in range(count)]


# --- cells


@pytest.mark.slow
@pytest.mark.parametrize("bias", [True, False])
def test_lstm_cell(bias: bool) -> None:
    ours, theirs = nn.LSTMCell(3, 5, bias), torch.nn.LSTMCell(3, 5, bias)

    assert_same(
        ours,
        theirs,
        numbers(2, 3),
        *states(2, 2, 5),
        call=lambda x, h, c: ours(x, (h, c)),
        twin=lambda x, h, c: theirs(x, (h, c)),
    )


def test_lstm_cell_starts_from_zeros() -> None:
    assert_same(nn.LSTMCell(3, 2), torch.nn.LSTMCell(3, 2), numbers(1, 3), dtypes_used=FAST)


@pytest.mark.slow
@pytest.mark.parametrize("bias", [True, False])
def test_gru_cell(bias: bool) -> None:
    assert_same(
        nn.GRUCell(3, 5, bias), torch.nn.GRUCell(3, 5, bias), numbers(2, 3), *states(1, 2, 5)
    )


def test_gru_cell_without_a_batch_starts_from_zeros() -> None:
    assert_same(nn.GRUCell(3, 2), torch.nn.GRUCell(3, 2), numbers(3), dtypes_used=FAST)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_rnn_cell(nonlinearity: Any) -> None:
    assert_same(
        nn.RNNCell(3, 5, nonlinearity=nonlinearity),
        torch.nn.RNNCell(3, 5, nonlinearity=nonlinearity),
        numbers(2, 3),
        *states(1, 2, 5),
        dtypes_used=FAST,
    )


# --- sequences


@pytest.mark.slow
def test_lstm_of_two_layers_in_both_directions() -> None:
    options: dict[str, Any] = {"num_layers": 2, "bidirectional": True, "batch_first": True}
    ours, theirs = nn.LSTM(3, 2, **options), torch.nn.LSTM(3, 2, **options)

    assert_same(
        ours,
        theirs,
        numbers(1, 2, 3),
        *states(2, 4, 1, 2),
        call=lambda x, h, c: ours(x, (h, c)),
        twin=lambda x, h, c: theirs(x, (h, c)),
        dtypes_used=FAST,
    )


def test_lstm_walks_from_zeros_in_float64() -> None:
    assert_same(nn.LSTM(2, 3), torch.nn.LSTM(2, 3), numbers(3, 1, 2), dtypes_used=[dtypes.float64])


@pytest.mark.slow
def test_gru_in_both_directions_without_bias() -> None:
    assert_same(
        nn.GRU(3, 2, bias=False, bidirectional=True),
        torch.nn.GRU(3, 2, bias=False, bidirectional=True),
        numbers(2, 2, 3),
        *states(1, 2, 2, 2),
        dtypes_used=FAST,
    )


def test_rnn_of_three_layers_without_a_batch() -> None:
    assert_same(
        nn.RNN(3, 2, 3, "relu"),
        torch.nn.RNN(3, 2, 3, "relu"),
        numbers(2, 3),
        *states(1, 3, 2),
        dtypes_used=FAST,
    )


def test_a_checkpoint_of_torch_has_the_names_of_the_weights() -> None:
    ours, theirs = nn.LSTM(3, 2, 2, bidirectional=True), torch.nn.LSTM(3, 2, 2, bidirectional=True)

    assert {name: tensor.shape for name, tensor in get_state_dict(ours).items()} == {
        name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()
    }


def test_a_captured_cell_walks_on_from_its_own_state() -> None:
    ours, theirs = nn.GRUCell(2, 3), torch.nn.GRUCell(2, 3)
    copied(theirs, weights_of(ours))
    step = TinyJit(ours.__call__)
    hidden, truth = Tensor.zeros(1, 3), torch.zeros(1, 3, dtype=torch.float64)

    for seed in range(5):
        x = numbers(1, 2, seed=seed)
        hidden, truth = step(Tensor(x, dtype="float32"), hidden), theirs(torch.tensor(x), truth)

    numpy.testing.assert_allclose(hidden.numpy(), truth.detach().numpy(), 1e-5, 1e-6)


def test_dropout_forgets_between_layers_in_training() -> None:
    layer = nn.RNN(2, 4, 2, dropout=1.0)
    x = Tensor(numbers(3, 1, 2), dtype="float32")
    with Context(TRAINING=1):
        outputs, last = layer(x)

    assert float(last[0].abs().sum()) > 0  # the first layer forgets nothing
    silent = nn.RNN(4, 4)  # the second one, which heard only zeros
    for name, tensor in get_state_dict(silent).items():
        tensor.replace(getattr(layer, name.replace("l0", "l1")))
    assert outputs.tolist() == silent(Tensor.zeros(3, 1, 4))[0].tolist()


# --- what is refused


def word(text: Any) -> Any:
    """A text that the types do not know."""
    return text


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.LSTMCell(0, 2), "LSTMCell: input_size must be a positive integer, got 0"),
        (lambda: nn.GRU(2, -1), "GRU: hidden_size must be a positive integer, got -1"),
        (lambda: nn.LSTM(2, 2, 0), "LSTM: num_layers must be a positive integer, got 0"),
        (lambda: nn.LSTM(2, 2, dropout=2.0), "LSTM: a probability lies between 0 and 1, got 2.0"),
        (lambda: nn.RNN(2, 2, 1, word("sin")), "RNN: nonlinearity is 'tanh' or 'relu', not"),
        (lambda: nn.RNNCell(2, 2, True, word("sin")), "not 'sin'"),
    ],
)
def test_arguments_out_of_range(make: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        make()


def test_inputs_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match=r"GRUCell of 3 features cannot take \(2, 4\)"):
        nn.GRUCell(3, 5)(Tensor.zeros(2, 4))
    with pytest.raises(ShapeError, match=r"state of shape \(2, 4\) where inputs \(2, 3\) need"):
        nn.LSTMCell(3, 5)(Tensor.zeros(2, 3), (Tensor.zeros(2, 5), Tensor.zeros(2, 4)))
    with pytest.raises(ShapeError, match=r"LSTM of 3 features cannot take \(2, 3, 4\); it takes "):
        nn.LSTM(3, 5)(Tensor.zeros(2, 3, 4))
    with pytest.raises(ShapeError, match=r"cannot take \(0, 2, 3\).*\(batch, length, features\)"):
        nn.LSTM(3, 5, batch_first=True)(Tensor.zeros(0, 2, 3))
    with pytest.raises(ShapeError, match=r"shape \(1, 2, 4\) where \(1, 2, 5\) is needed"):
        nn.GRU(3, 5)(Tensor.zeros(4, 2, 3), Tensor.zeros(1, 2, 4))
