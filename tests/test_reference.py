"""The reference lists what there is: no name disappears, none is left out, every page is fresh."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from tinycore import Device, Tensor, dtypes, nn

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs"

DTYPES: Final = (
    "void bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 "
    "fp8e4m3 fp8e5m2 fp8e4m3fnuz fp8e5m2fnuz weakint weakfloat half float double char short int "
    "long uchar ushort uint ulong is_float is_int is_unsigned is_bool from_py finfo default_float "
    "default_int imagef imageh min max"
)
LAYERS: Final = (
    "BatchNorm BatchNorm2d BatchNorm3d Conv1d Conv2d ConvTranspose1d ConvTranspose2d Linear "
    "GroupNorm InstanceNorm LayerNorm LayerNorm2d RMSNorm Embedding LSTMCell GRUCell LSTM"
)
OPTIMIZERS: Final = "SGD Adam AdamW LAMB LARS Muon OptimizerGroup Optimizer"

WITHOUT_EXAMPLE: Final = (
    # facts that one line says
    "device devices element_size grad is_floating_point is_param max_numel max_shape ndim numel "
    "graph requires_grad sharded_axis uop "
    # in the example of a relative
    "amax amin avg_pool2d bitwise_not bitwise_or bitwise_xor bmm ceil clip floor fmod idiv "
    "isfinite isinf max_unpool2d minimum mul ne rshift sub swish trunc uprod "
    # the same as a relative, of which the name says the difference
    "contiguous_backward linear_with_vars rand_like randn_like shard_ to_ "
    # the same as their namesakes, in place
    "abs_ ceil_ div_ exp_ floor_ log_ pow_ reciprocal_ round_ rsqrt_ sigmoid_ sub_ tanh_ trunc_ "
    "zero_ "
    # what the first line says whole
    "abs batchnorm callify glorot_uniform kaiming_normal kaiming_uniform layernorm logical_not neg "
    "reciprocal scaled_uniform "
    # what no device here can do
    "decode_hevc_frame"
)
"""Names with no example of their own, by reason."""


def loaded() -> ModuleType:
    """The script that writes the pages."""
    spec = importlib.util.spec_from_file_location("reference", FOLDER / "generate_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = loaded()
WRITTEN: Final = sorted(path.name for path in (FOLDER / "reference").glob("*.md"))
TENSOR: Final = [name for page in reference.PAGES.values() for name in page.names.split()]


@cache
def generated() -> dict[str, str]:
    """Every page as the docstrings have it."""
    pages: dict[str, str] = reference.generate()
    return pages


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (Tensor, " ".join(TENSOR)),
        (dtypes, DTYPES),
        (nn, LAYERS),
        (nn.optim, OPTIMIZERS),
    ],
    ids=["Tensor", "dtypes", "nn", "optim"],
)
def test_every_name_is_there(owner: object, names: str) -> None:
    assert [name for name in names.split() if not hasattr(owner, name)] == []


def test_no_name_stands_on_two_pages() -> None:
    assert len(set(TENSOR)) == len(TENSOR)


def test_every_public_name_of_a_tensor_is_on_a_page() -> None:
    public = {name for name in dir(Tensor) if not name.startswith("_")}

    assert sorted(public - set(TENSOR)) == []


def test_every_name_says_what_it_is() -> None:
    silent = [
        name
        for page in reference.PAGES.values()
        for name, value in reference.tensor_members(page)
        if not reference.docstring(value)
    ]

    assert silent == []


def test_every_name_shows_an_example_or_says_why_not() -> None:
    bare = {
        name
        for page in reference.PAGES.values()
        for name, value in reference.tensor_members(page)
        if ">>> " not in reference.docstring(value)
    }

    assert sorted(bare) == sorted(WITHOUT_EXAMPLE.split())


def test_every_page_is_there_and_no_other() -> None:
    assert sorted(generated()) == WRITTEN, "run python docs/generate_reference.py"


@pytest.mark.skipif(
    any(Device.plugins.find(name) is None for name in ("AMD", "CL", "CPU", "METAL", "NV", "QCOM")),
    reason="the page of settings lists those of every plugin",
)
@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_is_what_the_docstrings_say(name: str) -> None:
    written = (FOLDER / "reference" / name).read_text("utf-8")

    assert written == generated()[name], "run python docs/generate_reference.py"
