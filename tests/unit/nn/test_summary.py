"""Layers, optimizers, captures and models as text; names that completion lists."""

from __future__ import annotations

import traceback

import pytest

import tinycore
from tinycore import Context, Tensor, TinyJit, dtypes, nn
from tinycore.errors import ShapeError


def test_a_layer_shows_its_sizes_and_settings() -> None:
    assert repr(nn.Linear(3, 2)) == "Linear(weight=(2, 3), bias=(2,))"
    assert repr(nn.Linear(3, 2, bias=False)) == "Linear(weight=(2, 3))"
    assert repr(nn.Dropout(0.25)) == "Dropout(p=0.25)"
    assert "kernel_size=(3, 3), stride=2" in repr(nn.Conv2d(3, 4, 3, stride=2))
    assert "query=Linear(weight=(8, 8)" in repr(nn.MultiHeadAttention(8, 2))


def test_an_optimizer_shows_its_rate_and_settings() -> None:
    optimizer = nn.optim.SGD([Tensor.ones(3), Tensor.ones(2)], lr=0.5, momentum=0.9)
    optimizer.lr.realize()

    assert repr(optimizer).startswith("SGD(params=<2 tensors>, ")
    assert "lr=0.5, momentum=0.9" in repr(optimizer)


def test_a_capture_shows_its_steps() -> None:
    step = TinyJit(lambda x: (x + 1).realize())
    assert repr(step) == "<TinyJit test_a_capture_shows_its_steps.<locals>.<lambda>: no steps yet>"

    for number in range(3):
        step(Tensor([number]).realize())

    assert repr(step).endswith("<lambda>: steps of [1] launches>")


def test_a_summary_counts_each_tensor_once() -> None:
    first = nn.Linear(3, 2)

    shown = nn.summary({"first": first, "others": [nn.BatchNorm(2)], "tied": first})

    lines = [line.split() for line in shown.splitlines()]
    assert [line[:2] for line in lines] == [
        ["layer", "numbers"], ["first", "8"], ["others.0", "9"], ["tied", "0"], ["in", "all"],
    ]  # fmt: skip
    assert lines[-1][2:] == ["17", "72", "bytes"]
    assert repr(shown) == str(shown)


def test_completion_lists_public_names_alone() -> None:
    for found in (Tensor([1]), Tensor, nn.Linear(2, 3), nn, nn.optim, nn.state, tinycore):
        names = [name for name in dir(found) if not name.startswith("__")]
        assert not [name for name in names if name.startswith("_")], found
        assert not {"cuda", "Any", "TYPE_CHECKING", "annotations"}.intersection(names), found
    assert {"weight", "bias"} < set(dir(nn.Linear(2, 3)))
    assert {"Tensor", "nn", "errors", "profile"} < set(dir(tinycore))


def test_a_dtype_equals_its_name() -> None:
    x = Tensor([1.0])

    assert x.dtype == "float32"
    assert x.dtype != "float16"
    assert x.dtype != "no dtype"
    assert x.dtype.vec(4) != "float32"
    assert {dtypes.float32: 1}[x.dtype] == 1
    assert dtypes.float32 in (dtypes.int8, "float32")


def test_a_mistake_is_shown_at_the_line_of_the_caller() -> None:
    x = Tensor.ones(2, 3)

    with pytest.raises(ShapeError) as short:
        x @ x
    with Context(DEBUG=1), pytest.raises(ShapeError) as whole:
        x @ x

    frames = traceback.extract_tb(short.value.__traceback__)
    assert [frame.filename for frame in frames].index(__file__) == 0
    assert len(frames) <= 3
    assert len(traceback.extract_tb(whole.value.__traceback__)) > len(frames)


def test_frames_of_a_function_that_the_program_gave_are_shown() -> None:
    def kernel(out: object) -> Tensor:
        return Tensor.ones(2, 2).reshape(9)

    with pytest.raises(ShapeError) as raised:
        Tensor.ones(2, 2).contiguous().custom_kernel(fxn=kernel)

    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert "kernel" in names
