"""Every layer agrees with torch's: values, gradients, running statistics."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from tinycore import Context, Tensor, dtypes, nn
from tinycore.errors import ArgumentError, DTypeError, ShapeError
from tinycore.nn.state import get_state_dict


def numbers(*shape: int) -> Any:
    return numpy.random.default_rng(shape).standard_normal(shape).astype(numpy.float32)


def assert_close(found: Any, expected: Any) -> None:
    numpy.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def copied(ours: Any, theirs: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Give torch's layer our tensors; torch's tensors by our names."""
    known = dict(theirs.named_parameters()) | dict(theirs.named_buffers())
    for name, tensor in get_state_dict(ours).items():
        with torch.no_grad():
            known[name].copy_(torch.tensor(tensor.numpy()))
    return known


def assert_same(ours: Any, theirs: torch.nn.Module, array: Any, training: bool = False) -> None:
    known = copied(ours, theirs)
    theirs.train(training)
    x, y = Tensor(array), torch.tensor(array, requires_grad=array.dtype == numpy.float32)
    with Context(TRAINING=training):
        found, expected = ours(x), theirs(y)
        weights = numbers(*expected.shape)
        (found * Tensor(weights)).sum().backward()
    (expected * torch.tensor(weights)).sum().backward()
    assert_close(found.numpy(), expected.detach().numpy())
    if y.grad is not None:
        assert x.grad is not None
        assert_close(x.grad.numpy(), y.grad.numpy())
    for name, tensor in get_state_dict(ours).items():
        wanted = known[name]
        assert_close(tensor.numpy(), wanted.detach().numpy())
        if wanted.grad is not None:
            assert tensor.grad is not None
            assert_close(tensor.grad.numpy(), wanted.grad.numpy())


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias: bool) -> None:
    assert_same(nn.Linear(5, 3, bias), torch.nn.Linear(5, 3, bias), numbers(2, 4, 5))


def test_conv2d_with_every_option() -> None:
    options: dict[str, Any] = {
        "stride": 2,
        "padding": (1, 0),
        "dilation": (1, 2),
        "groups": 2,
    }

    assert_same(
        nn.Conv2d(4, 6, (3, 2), **options),
        torch.nn.Conv2d(4, 6, (3, 2), **options),
        numbers(2, 4, 7, 8),
    )


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_conv2d_padded_to_the_same_size() -> None:
    assert_same(
        nn.Conv2d(2, 3, (2, 5), padding="same"),
        torch.nn.Conv2d(2, 3, (2, 5), padding="same"),
        numbers(2, 2, 5, 6),
    )


def test_conv1d() -> None:
    assert_same(
        nn.Conv1d(2, 3, 3, dilation=2), torch.nn.Conv1d(2, 3, 3, dilation=2), numbers(2, 2, 9)
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
        numbers(2, 4, 5, 6),
    )


def test_conv_transpose1d() -> None:
    assert_same(
        nn.ConvTranspose1d(2, 3, 3, 2), torch.nn.ConvTranspose1d(2, 3, 3, 2), numbers(2, 2, 5)
    )


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training: bool) -> None:
    assert_same(nn.BatchNorm(3), torch.nn.BatchNorm2d(3), numbers(4, 3, 5, 5), training)


def test_batch_norm_of_plain_features() -> None:
    assert_same(nn.BatchNorm(3), torch.nn.BatchNorm1d(3), numbers(4, 3), training=True)


def test_batch_norm_of_a_volume_without_weights() -> None:
    assert_same(
        nn.BatchNorm3d(3, affine=False),
        torch.nn.BatchNorm3d(3, affine=False),
        numbers(2, 3, 2, 2, 2),
        training=True,
    )


def test_batch_norm_without_statistics_uses_the_batch() -> None:
    layer = nn.BatchNorm(2, affine=False, track_running_stats=False)

    assert abs(layer(Tensor(numbers(8, 2)) + 5).mean().item()) < 1e-5


def test_group_norm() -> None:
    assert_same(nn.GroupNorm(2, 4), torch.nn.GroupNorm(2, 4), numbers(2, 4, 3, 3))


def test_instance_norm() -> None:
    assert_same(
        nn.InstanceNorm(3),
        torch.nn.InstanceNorm2d(3, affine=True),
        numbers(2, 3, 4, 4),
        training=True,
    )


def test_layer_norm() -> None:
    assert_same(nn.LayerNorm((3, 4)), torch.nn.LayerNorm((3, 4)), numbers(2, 3, 4))


def test_layer_norm_2d_normalizes_each_pixel() -> None:
    found = nn.LayerNorm2d(5, elementwise_affine=False)(Tensor(numbers(2, 5, 3, 3))).numpy()

    numpy.testing.assert_allclose(found.mean(axis=1), numpy.zeros((2, 3, 3)), atol=1e-5)


def test_rms_norm() -> None:
    assert_same(nn.RMSNorm(4, eps=1e-5), torch.nn.RMSNorm(4, eps=1e-5), numbers(2, 3, 4))


def test_rms_norm_gives_back_the_dtype() -> None:
    layer = nn.RMSNorm(4, elementwise_affine=False)

    assert layer(Tensor(numbers(2, 4)).half()).dtype is dtypes.float16


def test_embedding() -> None:
    rows = numpy.array([[0, 6, 3], [3, 3, 1]])

    assert_same(nn.Embedding(7, 3), torch.nn.Embedding(7, 3), rows)


def test_weights_start_within_their_bound() -> None:
    weight = nn.Linear(16, 200).weight.numpy()

    assert 0.2 < abs(weight).max() <= 0.25


# --- what is refused


def test_an_embedding_of_floats() -> None:
    with pytest.raises(DTypeError, match="looked up by integers, not float32"):
        nn.Embedding(3, 2)(Tensor([1.0]))


def test_groups_that_do_not_divide() -> None:
    with pytest.raises(ArgumentError, match="2 groups do not divide 3 and 4 channels"):
        nn.Conv2d(3, 4, 1, groups=2)
    with pytest.raises(ArgumentError, match="3 groups do not divide 4 channels"):
        nn.GroupNorm(3, 4)


def test_same_padding_with_a_stride() -> None:
    with pytest.raises(ArgumentError, match="padding='same' needs a stride of 1, not 2"):
        nn.Conv2d(1, 1, 3, stride=2, padding="same")


def test_unknown_padding() -> None:
    with pytest.raises(ArgumentError, match="not 'valid'"):
        nn.Conv2d(1, 1, 3, padding="valid")


def test_other_channels_than_the_layer_has() -> None:
    with pytest.raises(ShapeError, match=r"BatchNorm of 3 channels cannot take \(2, 4, 5, 5\)"):
        nn.BatchNorm(3)(Tensor.zeros(2, 4, 5, 5))
    with pytest.raises(ShapeError, match=r"InstanceNorm of 3 channels cannot take \(2, 4\)"):
        nn.InstanceNorm(3)(Tensor.zeros(2, 4))
    with pytest.raises(ShapeError, match=r"LayerNorm over \(3,\) cannot take \(2, 4\)"):
        nn.LayerNorm(3)(Tensor.zeros(2, 4))
    with pytest.raises(ShapeError, match=r"takes \(N, C, H, W\), not \(2, 3\)"):
        nn.LayerNorm2d(3)(Tensor.zeros(2, 3))
    with pytest.raises(ShapeError, match=r"\(4, 5\).*\(2, 3\)|5.*2"):
        nn.Linear(2, 3)(Tensor.zeros(4, 5))


def test_training_a_batch_norm_on_single_values() -> None:
    with Context(TRAINING=1), pytest.raises(ShapeError, match="two values per channel"):
        nn.BatchNorm(3)(Tensor.zeros(1, 3))
