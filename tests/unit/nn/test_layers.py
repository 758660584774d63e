"""Every layer agrees with torch's: values, gradients, running statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.unit.nn.helpers import assert_same
from tests.unit.tensor.helpers import numbers
from tinycore import Context, Tensor, dtypes, nn
from tinycore.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from tinycore.uop.op import Op


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias: bool) -> None:
    assert_same(nn.Linear(5, 3, bias), torch.nn.Linear(5, 3, bias), numbers(2, 4, 5))


def test_conv2d_with_every_option() -> None:
    options: dict[str, Any] = {"stride": 2, "padding": (1, 0), "dilation": (1, 2), "groups": 2}

    assert_same(
        nn.Conv2d(4, 6, (3, 2), **options),
        torch.nn.Conv2d(4, 6, (3, 2), **options),
        numbers(2, 4, 7, 8),
    )


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_conv2d_padded_to_the_same_size() -> None:
    assert_same(
        nn.Conv2d(2, 3, (2, 5), padding="same", bias=False),
        torch.nn.Conv2d(2, 3, (2, 5), padding="same", bias=False),
        numbers(2, 2, 5, 6),
        dtypes_used=[dtypes.float32],
    )


def test_conv2d_of_each_channel_by_itself() -> None:
    assert_same(
        nn.Conv2d(3, 6, 3, padding=1, groups=3),
        torch.nn.Conv2d(3, 6, 3, padding=1, groups=3),
        numbers(1, 3, 5, 1),
        dtypes_used=[dtypes.float32],
    )


def test_conv1d() -> None:
    assert_same(
        nn.Conv1d(2, 3, 3, dilation=2), torch.nn.Conv1d(2, 3, 3, dilation=2), numbers(2, 2, 9)
    )


def test_a_window_of_three_axes_slides_over_a_volume() -> None:
    assert_same(
        nn.Conv2d(2, 3, (2, 1, 3)), torch.nn.Conv3d(2, 3, (2, 1, 3)), numbers(1, 2, 3, 2, 4)
    )


def test_conv_transpose2d_with_every_option() -> None:
    options: dict[str, Any] = {
        "stride": 2,
        "padding": 1,
        "output_padding": 1,
        "groups": 2,
        "dilation": 2,
    }

    assert_same(
        nn.ConvTranspose2d(4, 6, 3, **options),
        torch.nn.ConvTranspose2d(4, 6, 3, **options),
        numbers(2, 4, 3, 4),
    )


def test_conv_transpose1d() -> None:
    assert_same(
        nn.ConvTranspose1d(2, 3, 3, 2, bias=False),
        torch.nn.ConvTranspose1d(2, 3, 3, 2, bias=False),
        numbers(2, 2, 5),
    )


# --- normalization


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training: bool) -> None:
    assert_same(nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3), numbers(4, 3, 5, 5), training=training)


def test_batch_norm_of_plain_features() -> None:
    assert_same(
        nn.BatchNorm(3, eps=1e-3, momentum=0.3),
        torch.nn.BatchNorm1d(3, eps=1e-3, momentum=0.3),
        numbers(4, 3),
        training=True,
    )


def test_batch_norm_of_a_volume_without_weights() -> None:
    assert_same(
        nn.BatchNorm3d(3, affine=False),
        torch.nn.BatchNorm3d(3, affine=False),
        numbers(2, 3, 2, 2, 2),
        training=True,
    )


def test_batch_norm_uses_what_it_has_tracked() -> None:
    ours, theirs = nn.BatchNorm(2), torch.nn.BatchNorm1d(2)
    for seed in range(3):
        batch = numbers(5, 2, seed=seed).astype(numpy.float32)
        theirs(torch.tensor(batch))
        with Context(TRAINING=1):
            ours(Tensor(batch)).realize(
                ours.running_mean, ours.running_var, ours.num_batches_tracked
            )

    assert ours.num_batches_tracked.item() == 3
    assert_same(ours, theirs, numbers(4, 2))


def test_batch_norm_without_statistics_uses_the_batch() -> None:
    layer = nn.BatchNorm(2, affine=False, track_running_stats=False)
    theirs = torch.nn.BatchNorm1d(2, affine=False, track_running_stats=False)
    batch = numbers(8, 2) + 5

    found = layer(Tensor(batch, dtype="float64")).numpy()

    numpy.testing.assert_allclose(found, theirs(torch.tensor(batch)).numpy(), 1e-9)


@pytest.mark.parametrize("weights", ["float16", "float32"])
def test_batch_norm_of_half_precision_keeps_its_statistics_precise(weights: str) -> None:
    layer, theirs = nn.BatchNorm(2), torch.nn.BatchNorm1d(2).double()
    for weight in (layer.weight, layer.bias):
        assert weight is not None
        weight.replace(weight.cast(weights))
    batch = Tensor(numbers(16, 2) * 300).half()  # its square is more than float16 holds

    with Context(TRAINING=1):
        found = layer(batch)

    expected = theirs(torch.tensor(batch.numpy()).double())
    assert found.dtype.name == weights
    numpy.testing.assert_allclose(found.numpy(), expected.detach().numpy(), 2e-3, 2e-3)
    assert theirs.running_var is not None
    numpy.testing.assert_allclose(layer.running_var.numpy(), theirs.running_var.numpy(), 1e-5)


def test_group_norm() -> None:
    assert_same(nn.GroupNorm(2, 4), torch.nn.GroupNorm(2, 4), numbers(2, 4, 3, 3))


def test_group_norm_without_weights() -> None:
    assert_same(
        nn.GroupNorm(1, 3, 1e-2, affine=False),
        torch.nn.GroupNorm(1, 3, 1e-2, affine=False),
        numbers(2, 3, 5),
        dtypes_used=[dtypes.float32],
    )


def test_instance_norm() -> None:
    assert_same(
        nn.InstanceNorm(3),
        torch.nn.InstanceNorm2d(3, affine=True),
        numbers(2, 3, 4, 4),
        training=True,
    )


def test_layer_norm() -> None:
    assert_same(nn.LayerNorm((3, 4)), torch.nn.LayerNorm((3, 4)), numbers(2, 3, 4))


def test_layer_norm_of_one_axis_without_weights() -> None:
    assert_same(
        nn.LayerNorm(5, elementwise_affine=False),
        torch.nn.LayerNorm(5, elementwise_affine=False),
        numbers(3, 5),
        dtypes_used=[dtypes.float32],
    )


def test_layer_norm_2d_normalizes_each_pixel() -> None:
    theirs = torch.nn.LayerNorm(5)

    assert_same(
        nn.LayerNorm2d(5),
        theirs,
        numbers(2, 5, 3, 1),
        twin=lambda x: theirs(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
    )


def test_rms_norm() -> None:
    assert_same(nn.RMSNorm(4, eps=1e-5), torch.nn.RMSNorm(4, eps=1e-5), numbers(2, 3, 4))


def test_rms_norm_gives_back_the_dtype() -> None:
    layer = nn.RMSNorm(4, elementwise_affine=False)
    great = Tensor(numbers(2, 4) * 300).half()  # its square is more than float16 holds

    found = layer(great)

    assert found.dtype is dtypes.float16
    precise = great.numpy().astype(numpy.float64)
    expected = precise / numpy.sqrt((precise**2).mean(-1, keepdims=True))
    numpy.testing.assert_allclose(found.numpy(), expected, 2e-3)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.GroupNorm(2, 4), (0, 4, 3)),
        (lambda: nn.LayerNorm(4), (0, 4)),
        (lambda: nn.Linear(4, 2), (0, 4)),
    ],
    ids=["GroupNorm", "LayerNorm", "Linear"],
)
def test_no_samples_give_no_results(make: Any, shape: tuple[int, ...]) -> None:
    assert make()(Tensor.zeros(shape)).numpy().shape[0] == 0


# --- embedding and dropout


@pytest.mark.parametrize("padding", [0, 5, -1])
def test_a_row_of_padding_is_zero_and_gets_no_gradient(padding: int) -> None:
    table = nn.Embedding(7, 3, padding_idx=padding)
    row = padding % 7
    assert table.weight[row].tolist() == [0.0, 0.0, 0.0]

    rows = Tensor([[row, 1, 6], [row - 7, 2, 1]])
    (slope,) = table(rows).sum().gradient(table.weight)

    expected = numpy.zeros((7, 3))
    numpy.add.at(expected, [n for n in (1, 6, 2, 1) if n != row], 1)
    assert slope.tolist() == expected.tolist()
    with pytest.raises(ArgumentError, match="padding_idx 7 names no row of 7"):
        nn.Embedding(7, 3, padding_idx=7)


def test_embedding() -> None:
    rows = numpy.array([[0, 6, 3], [3, 3, 1]])

    assert_same(nn.Embedding(7, 3), torch.nn.Embedding(7, 3), rows)


def test_embedding_gathers_rows_and_multiplies_nothing() -> None:
    graph = nn.Embedding(7, 3)(Tensor([6, 0])).uop.toposort()
    ops = {node.op for node in graph}

    assert Op.GATHER in ops
    assert Op.REDUCE_AXIS not in ops


def test_dropout_only_forgets_in_training() -> None:
    layer, x = nn.Dropout(0.25), Tensor.ones(1000)
    Tensor.manual_seed(3)

    assert layer(x).tolist() == x.tolist()
    with Context(TRAINING=1):
        kept = layer(x).numpy()

    assert set(kept) == {0.0, numpy.float32(1 / 0.75)}
    assert abs((kept == 0).mean() - 0.25) < 5 * (0.25 * 0.75 / 1000) ** 0.5


# --- what is refused


def test_an_embedding_of_floats() -> None:
    with pytest.raises(DTypeError, match="looked up by integers, not float32"):
        nn.Embedding(3, 2)(Tensor([1.0]))


def test_groups_that_do_not_divide() -> None:
    with pytest.raises(ArgumentError, match="2 groups do not divide 3 and 4 channels"):
        nn.Conv2d(3, 4, 1, groups=2)
    with pytest.raises(ArgumentError, match="3 groups do not divide 4 and 6 channels"):
        nn.ConvTranspose2d(6, 4, 1, groups=3)
    with pytest.raises(ArgumentError, match="3 groups do not divide 4 channels"):
        nn.GroupNorm(3, 4)


def test_same_padding_with_a_stride() -> None:
    with pytest.raises(ArgumentError, match="padding='same' needs a stride of 1, not 2"):
        nn.Conv2d(1, 1, 3, stride=2, padding="same")


def test_unknown_padding() -> None:
    with pytest.raises(ArgumentError, match="not 'valid'"):
        nn.Conv2d(1, 1, 3, padding="valid")
    with pytest.raises(ArgumentError, match="padded by numbers, not 'same'"):
        nn.ConvTranspose2d(1, 1, 3, padding="same")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.Linear(0, 3), "Linear: in_features must be a positive integer, got 0"),
        (
            lambda: nn.Linear(2, 5 / 2),  # type: ignore[arg-type]
            "out_features must be a positive integer, got 2.5",
        ),
        (lambda: nn.Embedding(-1, 3), "vocab_size must be a positive integer, got -1"),
        (lambda: nn.Conv2d(1, 0, 3), "out_channels must be a positive integer, got 0"),
        (lambda: nn.Conv2d(1, 1, (3, 0)), r"kernel_size must be positive, got \(3, 0\)"),
        (lambda: nn.Conv2d(1, 1, 3, stride=0), r"stride must be positive, got \(0,\)"),
        (lambda: nn.Conv1d(1, 1, 3, dilation=-1), r"dilation must be positive, got \(-1,\)"),
        (lambda: nn.BatchNorm(0), "BatchNorm: sz must be a positive integer, got 0"),
        (lambda: nn.GroupNorm(0, 4), "GroupNorm: num_groups must be a positive integer, got 0"),
        (lambda: nn.InstanceNorm(0), "InstanceNorm: num_groups must be a positive integer"),
        (lambda: nn.LayerNorm((3, 0)), "normalized_shape must be a positive integer, got 0"),
        (lambda: nn.LayerNorm(()), "normalized_shape has no axes"),
        (lambda: nn.RMSNorm(True), "RMSNorm: dim must be a positive integer, got True"),
        (lambda: nn.Dropout(1.5), "a probability lies between 0 and 1, got 1.5"),
    ],
)
def test_sizes_out_of_range(make: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        make()


@pytest.mark.parametrize(
    ("make", "shape", "said"),
    [
        (
            lambda: nn.BatchNorm(3),
            (2, 4, 5, 5),
            r"BatchNorm of 3 channels cannot take \(2, 4",
        ),
        (lambda: nn.InstanceNorm(3), (2, 4), r"InstanceNorm of 3 channels cannot take \(2, 4\)"),
        (lambda: nn.LayerNorm(3), (2, 4), r"LayerNorm over \(3,\) cannot take \(2, 4\)"),
        (lambda: nn.LayerNorm2d(3), (2, 3), r"takes \(N, 3, H, W\), not \(2, 3\)"),
        (lambda: nn.LayerNorm2d(3), (2, 4, 5, 5), r"takes \(N, 3, H, W\), not \(2, 4, 5, 5\)"),
        (lambda: nn.RMSNorm(3), (2, 4), r"RMSNorm over 3 values cannot take \(2, 4\)"),
        (lambda: nn.Linear(2, 3), (4, 5), r"Linear from 2 to 3 features cannot take \(4, 5\)"),
        (lambda: nn.Conv2d(3, 4, 2), (1, 2, 5, 5), r"\(2 and 3\).*\(1, 2, 5, 5\)"),
        (lambda: nn.Conv2d(3, 4, 6), (1, 3, 5, 5), "6"),
        (lambda: nn.ConvTranspose2d(3, 4, 2), (1, 2, 5, 5), r"\(3 and 2\).*\(1, 2, 5, 5\)"),
    ],
)
def test_inputs_that_do_not_fit(make: Any, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(ShapeError, match=said):
        make()(Tensor.zeros(shape))


def test_training_a_batch_norm_on_single_values() -> None:
    with Context(TRAINING=1), pytest.raises(ShapeError, match="two values per channel"):
        nn.BatchNorm(3)(Tensor.zeros(1, 3))


def test_second_derivatives_of_batch_normalization_are_those_of_torch() -> None:
    rows, weights = ([[1.0, -2.0], [0.5, 3.0], [2.0, 0.25]], [[0.3, 1.0], [-1.0, 2.0], [0.7, 0.1]])
    x, w = Tensor(rows, dtype="float64", requires_grad=True), Tensor(weights, dtype="float64")
    peer, v = (torch.tensor(data, dtype=torch.float64) for data in (rows, weights))
    peer.requires_grad_()
    layer = nn.BatchNorm(2, affine=False, track_running_stats=False)

    (slope,) = (layer(x) * x * w).sum().gradient(x)
    (found,) = (slope * w).sum().gradient(x)
    normal = torch.nn.functional.batch_norm(peer, None, None, training=True)
    (steep,) = torch.autograd.grad((normal * peer * v).sum(), peer, create_graph=True)
    (expected,) = torch.autograd.grad((steep * v).sum(), peer)

    numpy.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)


LAYERS: dict[str, Callable[[], Any]] = {
    "BatchNorm": lambda: nn.BatchNorm(3),
    "Conv2d": lambda: nn.Conv2d(3, 2, 1),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(3, 2, 1),
    "Dropout": nn.Dropout,
    "Embedding": lambda: nn.Embedding(3, 2),
    "GRU": lambda: nn.GRU(3, 2),
    "GRUCell": lambda: nn.GRUCell(3, 2),
    "GroupNorm": lambda: nn.GroupNorm(1, 3),
    "LSTM": lambda: nn.LSTM(3, 2),
    "LSTMCell": lambda: nn.LSTMCell(3, 2),
    "LayerNorm": lambda: nn.LayerNorm(3),
    "LayerNorm2d": lambda: nn.LayerNorm2d(3),
    "Linear": lambda: nn.Linear(3, 2),
    "MultiHeadAttention": lambda: nn.MultiHeadAttention(3, 1),
    "RMSNorm": lambda: nn.RMSNorm(3),
    "RNN": lambda: nn.RNN(3, 2),
    "RNNCell": lambda: nn.RNNCell(3, 2),
}


@pytest.mark.parametrize("name", LAYERS)
def test_arrays_are_told_from_tensors(name: str) -> None:
    layer = LAYERS[name]()

    for x in (numpy.ones((3, 3), "float32"), torch.ones(3, 3), [[1.0, 2.0, 3.0]]):
        with pytest.raises(
            ArgumentTypeError, match=rf"^{name}: x is of type .*Tensor\(\.\.\.\) ma"
        ):
            layer(x)
