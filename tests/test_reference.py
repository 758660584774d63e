"""The reference shows what there is: no name disappears, none is left out, examples are right."""

from __future__ import annotations

import doctest
import inspect
import pkgutil
import re
import runpy
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

import tinycore
from tinycore import Context, Device, Tensor, dtypes, nn, plugin, render
from tinycore.render import cstyle

ROOT: Final = Path(__file__).resolve().parent.parent

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
    "amax amin avg_pool2d bitwise_not bitwise_or bitwise_xor bmm ceil floor fmod idiv "
    "isfinite isinf max_unpool2d minimum mul ne rshift sub trunc uprod "
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


FOLDER: Final = ROOT / "docs/reference"
PAGES: Final = {
    path.name: re.findall(r"^::: (\S+)$", path.read_text("utf-8"), re.MULTILINE)
    for path in sorted(FOLDER.glob("*.md"))
}
"""Names that mkdocstrings shows on each page, by their paths."""
SHOWN: Final = [name for names in PAGES.values() for name in names]
TENSOR: Final = [name.rpartition(".")[2] for name in SHOWN if name.startswith("tinycore.Tensor.")]
MODULES: Final = (
    nn,
    nn.optim,
    nn.optim.lr_scheduler,
    nn.state,
    nn.datasets,
    plugin,
    render,
    cstyle,
)
"""Modules that are shown whole, beside `tinycore` and its `Tensor`."""

BEFORE: Final = {"Context": Context, "Tensor": Tensor, "dtypes": dtypes, "nn": nn}
"""Names that examples may use."""


def described(path: str) -> str:
    """The docstring at a path; "" where there is none."""
    owner, _, name = path.rpartition(".")
    value = inspect.getattr_static(pkgutil.resolve_name(owner), name)
    if isinstance(value, ModuleType) or inspect.ismemberdescriptor(value):
        return ""
    return inspect.getdoc(getattr(value, "__func__", value)) or ""


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


def test_no_name_stands_twice() -> None:
    assert sorted({name for name in SHOWN if SHOWN.count(name) > 1}) == []


def test_every_public_name_of_a_tensor_is_on_a_page() -> None:
    public = {name for name in dir(Tensor) if not name.startswith("_")}

    assert sorted(public ^ set(TENSOR)) == []


@pytest.mark.parametrize("module", [tinycore, *MODULES], ids=lambda module: module.__name__)
def test_every_public_name_of_a_module_is_on_a_page(module: ModuleType) -> None:
    below = f"{module.__name__}."
    shown = {name.rpartition(".")[2] for name in SHOWN if name.startswith(below)}
    values = {name: getattr(module, name) for name in module.__all__}
    objects = {n for n, value in values.items() if not isinstance(value, ModuleType)} - {"dtypes"}

    assert sorted(objects - shown) == []


def test_every_name_says_what_it_is() -> None:
    assert [name for name in TENSOR if not described(f"tinycore.Tensor.{name}")] == []


def test_every_name_shows_an_example_or_says_why_not() -> None:
    bare = {name for name in TENSOR if ">>> " not in described(f"tinycore.Tensor.{name}")}

    assert sorted(bare) == sorted(WITHOUT_EXAMPLE.split())


def complaints(texts: Iterable[str], name: str) -> str:
    """Differences between what the examples of docstrings print and say, all as one session."""
    told: list[str] = []
    test = doctest.DocTestParser().get_doctest("\n\n".join(texts), dict(BEFORE), name, name, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    with Context(DEV="PYTHON"):
        runner.run(test, out=told.append)
    return "".join(told)


@pytest.mark.parametrize("page", PAGES)
def test_examples_print_what_they_say(page: str) -> None:
    assert complaints(map(described, PAGES[page]), page) == ""


def test_a_wrong_example_is_told() -> None:
    text = described("tinycore.Tensor.linspace")
    right = ">>> Tensor.linspace(0, 1, 5).tolist()\n[0.0, 0.25"

    assert right in text
    told = complaints([text.replace(right, right.replace("0.25", "0.24"))], "linspace")
    assert "[0.0, 0.24" in told
    assert "[0.0, 0.25" in told


def tables() -> dict[str, str]:
    """Pages as docs/generate_tables.py would write them."""
    return runpy.run_path(str(ROOT / "docs/generate_tables.py"))["generate"]()  # type: ignore[no-any-return]


@pytest.mark.skipif(
    any(Device.plugins.find(name) is None for name in ("AMD", "CL", "CPU", "METAL", "NV", "QCOM")),
    reason="the page of settings lists those of every plugin",
)
def test_tables_are_what_their_script_writes() -> None:
    written = {name: (FOLDER / name).read_text("utf-8") for name in tables()}

    assert written == tables(), "run python docs/generate_tables.py"


def test_examples_of_docstrings_become_code() -> None:
    griffe = pytest.importorskip("griffe", reason="pages are built by mkdocstrings")
    assert griffe
    fenced = runpy.run_path(str(ROOT / "docs/griffe_examples.py"))["fenced"]

    assert [*fenced("A.\n\n>>> f()\n1\n\nB.\n\n>>> g()")] == (
        "A.||```python|>>> f()|1|```||B.||```python|>>> g()|```".split("|")
    )
