"""Write docs/reference/: a page per group of names, from the docstrings.

    python docs/generate_reference.py

What is listed here is the public surface, and every environment variable. `tests/test_reference.py`
fails when a name is gone, when a public one is on no page or shows no example, or when a page is
not what this script would write.
`tests/test_docs.py` runs the examples, each page as one session that begins with BEFORE.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import tinycore
from tinycore import Tensor, dtypes, nn, plugin, render
from tinycore.config import PluginSettings, Setting, settings
from tinycore.render import cstyle

FOLDER: Final = Path(__file__).with_name("reference")

BEFORE: Final = (
    "```python",
    ">>> from tinycore import Context, Tensor, dtypes, nn",
    '>>> place = Context(DEV="PYTHON")',
    ">>> place.__enter__()",
    "",
    "```",
    "",
)
"""Names that the examples of a page may use, and a device that is always there."""
AFTER: Final = ("```python", ">>> place.__exit__(None, None, None)", "", "```")


class Page(NamedTuple):
    """A page: where its names live, a sentence on them, and the names."""

    title: str
    owner: object
    prefix: str
    about: str
    names: str


PAGES: Final = {
    "facts": Page(
        "Facts about a tensor",
        Tensor,
        "Tensor",
        "Facts about a tensor; nothing is computed to answer.",
        "T device dtype grad is_param max_shape ndim shape uop element_size is_floating_point "
        "max_numel nbytes numel size requires_grad mT graph",
    ),
    "creation": Page(
        "Creation",
        Tensor,
        "Tensor",
        "Tensors of numbers, ranges, files and memory. Constants take no memory until they must.",
        "arange empty eye from_blob from_url full invalids linspace ones zeros const const_like "
        "empty_like full_like ones_like ufix zeros_like from_dlpack from_uop",
    ),
    "random": Page(
        "Random numbers",
        Tensor,
        "Tensor",
        "One stream of numbers, the same on every device; `manual_seed` begins it anew.",
        "dropout get_rng_state glorot_uniform kaiming_normal kaiming_uniform manual_seed "
        "multinomial normal rand rand_like randint randn randn_like random_bits randperm "
        "scaled_uniform set_rng_state threefry uniform",
    ),
    "computing": Page(
        "Computing, reading, writing, differentiating",
        Tensor,
        "Tensor",
        "A tensor is a graph until it is realized.",
        "alu as_param assign backward call callify clone contiguous contiguous_backward "
        "custom_kernel data detach gradient is_param_ item linear_with_vars numpy realize replace "
        "schedule_linear tolist schedule kernelize requires_grad_ train test to to_ to_device "
        "shard shard_ shard_like devices sharded_axis hash keccak decode_hevc_frame",
    ),
    "inplace": Page(
        "Writing in place",
        Tensor,
        "Tensor",
        "Each writes what its namesake without the mark computes, for every view of the tensor to "
        "see; so do `+=`, `*=` and the like. [Aliasing](../aliasing.md) says what is a view.",
        "abs_ add_ ceil_ clamp_ copy_ div_ exp_ fill_ floor_ lerp_ log_ masked_fill_ mul_ neg_ "
        "normal_ pow_ reciprocal_ relu_ round_ rsqrt_ sigmoid_ sqrt_ sub_ tanh_ trunc_ uniform_ "
        "zero_",
    ),
    "movement": Page(
        "Shape and place",
        Tensor,
        "Tensor",
        "Elements keep their values and change their places. Axes may be negative; one that "
        "is not there raises IndexRangeError.",
        "cat chunk diag diagonal expand flatten flip gather masked_fill masked_select meshgrid "
        "movedim nonzero pad pad_to permute rearrange repeat repeat_interleave reshape roll "
        "scatter scatter_reduce shrink shrink_to split squeeze stack transpose tril triu unflatten "
        "unfold unsqueeze view unbind narrow index_select index_add tile diff pixel_shuffle",
    ),
    "elementwise": Page(
        "Element by element",
        Tensor,
        "Tensor",
        "Operands are broadcast together and promoted to one dtype. Shapes that do not fit raise "
        "ShapeError, devices that differ DeviceError.",
        "abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf exp exp2 expm1 floor "
        "isfinite isinf isnan log log10 log1p log2 logical_not neg reciprocal round rsqrt sign sin "
        "sinh sqrt square tan tanh trunc add bitwise_and bitwise_or bitwise_xor clamp clip "
        "copysign div eq fmod idiv isclose lerp logaddexp lshift maximum minimum mod mul ne pow "
        "rshift sub where atan2 hypot bfloat16 bitcast bool cast double float half int long short",
    ),
    "activations": Page(
        "Activations",
        Tensor,
        "Tensor",
        "The nonlinear functions of networks.",
        "celu elu gelu hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish quick_gelu relu "
        "relu6 selu sigmoid silu softplus softsign swish glu",
    ),
    "reduction": Page(
        "Reductions, scans and sorting",
        Tensor,
        "Tensor",
        "Along one axis, several, or all. An axis may be negative; one that is not there raises "
        "IndexRangeError.",
        "all allclose any argmax argmin argsort cummax cummin cumprod cumsum log_softmax "
        "logcumsumexp logsumexp max mean min normalize prod softmax softmin sort std std_mean sum "
        "topk uprod usum var var_mean amax amin norm median quantile bincount unique searchsorted",
    ),
    "products": Page(
        "Products, windows and decompositions",
        Tensor,
        "Tensor",
        "Products of tensors, convolution, pooling and attention, and linear algebra.",
        "avg_pool2d batchnorm conv2d conv_transpose2d dot einsum image image_conv2d image_dot "
        "interpolate layernorm linear matmul max_pool2d max_unpool2d newton_schulz one_hot qr "
        "scaled_dot_product_attention sequential svd bmm outer kron cross trace cdist cholesky det "
        "eigh eigvalsh inv inverse logdet matrix_norm matrix_power matrix_rank pinv slogdet solve "
        "svdvals",
    ),
    "losses": Page(
        "Losses",
        Tensor,
        "Tensor",
        "Losses: the values that training minimizes.",
        "binary_crossentropy binary_crossentropy_logits cross_entropy nll_loss "
        "sparse_categorical_crossentropy mse_loss l1_loss huber_loss kl_div",
    ),
}

NN: Final = {
    "layers": (nn, "nn", "Layers: any object with tensors in it is a model."),
    "optimizers": (nn.optim, "nn.optim", "Optimizers, clipping and scaling of losses."),
    "schedulers": (
        nn.optim.lr_scheduler,
        "nn.optim.lr_scheduler",
        "Learning-rate schedules, from step to step.",
    ),
    "state": (nn.state, "nn.state", "State: names, files, archives."),
    "datasets": (nn.datasets, "nn.datasets", "Datasets, from files or a server."),
}
"""Modules whose `__all__` is listed whole."""


AUTHORS: Final = {
    "plugin": (
        plugin,
        "The names that a backend imports; [Write a backend](../write-a-backend.md) has them all.",
    ),
    "render": (
        render,
        "Building blocks of renderers; [Write a backend in C](../write-a-backend-in-c.md) has one.",
    ),
    "cstyle": (
        cstyle,
        "The base of renderers of C-like languages: tables and templates that a dialect changes.",
    ),
}
"""Modules for authors of backends, listed with fields and methods."""


FIELDS: Final = {
    "uop": "The node of the graph that this tensor is.",
}
"""Descriptions of a tensor's own fields."""


def value_of(owner: object, name: str) -> Any:
    """A member as it is written, not as it is bound."""
    return inspect.getattr_static(owner, name)


def signature(name: str, value: Any) -> str:
    """A function with its arguments; an attribute by its name."""
    if isinstance(value, property) or not callable(getattr(value, "__func__", value)):
        return name
    try:
        found = inspect.signature(getattr(value, "__func__", value))
    except (TypeError, ValueError):
        return name
    shown = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    plain = found.replace(parameters=shown, return_annotation=inspect.Signature.empty)
    return name + re.sub(r": '([^']*)'", r": \1", str(plain))


def docstring(value: Any) -> str:
    """Docstring of a member; of a field, which Python keeps none for, from the sources."""
    if inspect.ismemberdescriptor(value):
        return FIELDS[value.__name__]
    return inspect.getdoc(getattr(value, "__func__", value)) or ""


def block(name: str, value: Any) -> Iterator[str]:
    """The lines on one name; examples stand in blocks of their own."""
    yield f"### `{signature(name, value)}`"
    yield ""
    example: list[str] = []
    for line in [*docstring(value).splitlines(), ""]:
        if line.startswith(">>> ") or (example and line.strip()):
            example.append(line)
            continue
        if example:
            yield from ("```python", *example, "", "```")
            example = []
        yield line


def page(title: str, about: str, prefix: str, members: list[tuple[str, Any]]) -> str:
    """One page."""
    lines = [line for name, value in members for line in block(f"{prefix}.{name}", value)]
    if any(line.startswith(">>> ") for line in lines):
        lines = [*BEFORE, *lines, *AFTER]
    lines = [f"# {title}", "", about, "", *lines]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def tensor_members(group: Page) -> list[tuple[str, Any]]:
    """The names of a page that are there, with what they are."""
    return [(n, value_of(group.owner, n)) for n in group.names.split() if hasattr(group.owner, n)]


def module_members(module: ModuleType) -> list[tuple[str, Any]]:
    """The public names of a module that have something to say."""
    members = [(n, getattr(module, n)) for n in sorted(module.__all__)]
    return [(n, v) for n, v in members if not isinstance(v, ModuleType)]


PARAGRAPH: Final = "\n\n"


def fields(kind: type) -> Iterator[str]:
    """A line on each field of a class: its annotation, and the string below it in the source."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    body = definition.body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or ast.unparse(node.target).startswith("_"):
            continue
        value = f" = {ast.unparse(node.value)}" if node.value is not None else ""
        value = value if len(value) < 40 else " = ..."
        head = f"- `{ast.unparse(node.target)}: {ast.unparse(node.annotation)}{value}`"
        told = text_of(after)
        yield f"{head}: {' '.join(told.split())}" if told else head


def text_of(node: ast.stmt | None) -> str:
    """The string that a statement consists of; "" for any other statement."""
    value = node.value if isinstance(node, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def methods(kind: type) -> Iterator[str]:
    """A line on each public method and property of a class: its arguments and first paragraph."""
    for name, value in vars(kind).items():
        function = getattr(value, "__func__", getattr(value, "func", value))
        is_method = inspect.isfunction(function) or isinstance(value, property)
        if name.startswith("_") or name in inspect.get_annotations(kind) or not is_method:
            continue
        told = inspect.getdoc(function) or ""
        yield f"- `{signature(name, value)}`: {' '.join(told.partition(PARAGRAPH)[0].split())}"


def author_page(module: ModuleType, about: str) -> str:
    """A module for authors of backends: classes with fields and methods, and functions."""
    lines = [f"# `{module.__name__}`", "", about, ""]
    for name, value in module_members(module):
        if not inspect.isclass(value):
            if inspect.isfunction(value):
                lines += block(name, value)
            continue
        lines += [f"### `{name}`", "", *docstring(value).splitlines(), ""]
        lines += [*fields(value), *methods(value), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def dtype_page() -> str:
    """Every dtype with its width, and its other names."""
    lines = [
        "# dtypes",
        "",
        "`from tinycore import dtypes`. Names that mean the same stand in one row.",
        "",
        "| dtype | bytes | least | greatest | also |",
        "|---|---|---|---|---|",
    ]
    for dtype in dtypes.all:
        same = [n for n in dir(dtypes) if n != dtype.name and getattr(dtypes, n) is dtype]
        also = ", ".join(f"`{n}`" for n in same if not n.startswith("default"))
        least, greatest = (f"{limit + 0}" for limit in (dtypes.min(dtype), dtypes.max(dtype)))
        lines.append(f"| `{dtype.name}` | {dtype.itemsize} | {least} | {greatest} | {also} |")
    return "\n".join(lines) + "\n"


def plugin_settings() -> dict[str, list[Setting[Any]]]:
    """The tables of the plugins of this tree, installed or not, by the name in their docstring."""
    found: dict[str, list[Setting[Any]]] = {}
    for path in sorted(FOLDER.parent.parent.glob("plugins/*/src/*/settings.py")):
        sys.path.append(str(path.parent.parent))
        try:
            module = importlib.import_module(f"{path.parent.name}.settings")
        finally:
            sys.path.pop()
        for kind in vars(module).values():
            if inspect.isclass(kind) and kind.__module__ == module.__name__:
                found[kind.__name__.removesuffix("Settings").upper()] = list(table_of(kind))
    return found


def table_of(kind: type) -> Iterable[Setting[Any]]:
    """The rows of a plugin's table; none of another class."""
    return kind.table() if issubclass(kind, PluginSettings) else ()


def settings_page() -> str:
    """The table of environment variables: the core's, then those of each plugin."""
    lines = [
        "# Environment variables",
        "",
        "Every setting, written from `tinycore/config.py` and the `settings.py` of each plugin by",
        "`docs/generate_reference.py`. `tinycore settings` prints their values in force, and where",
        "each comes from. A program sets one by `with Context(DEBUG=2): ...`. A setting of",
        "the core is also read with the prefix `TINYCORE_` (`TINYCORE_DEBUG=2`), which wins.",
        "",
    ]
    tables: dict[str, Iterable[Setting[Any]]] = {"tinycore": settings, **plugin_settings()}
    for name, table in tables.items():
        lines += [f"## `{name}`", "", "| variable | default | allowed | what it does |"]
        lines.append("|---|---|---|---|")
        lines += [
            f"| `{row.name}` | {default_of(row)} | {row.allowed} | {row.doc} |" for row in table
        ]
        lines.append("")
    return "\n".join(lines)


def default_of(row: Setting[Any]) -> str:
    """The default of a setting as its variable would spell it; nothing where it is empty."""
    value = row.default
    if isinstance(value, tuple):
        value = ",".join(value)
    elif isinstance(value, bool):
        value = int(value)
    return "" if value in ("", None) else f"`{value}`"


def index_page(pages: dict[str, tuple[str, list[str]]]) -> str:
    """The table of all names."""
    lines = [
        "# Reference",
        "",
        "Written from the docstrings by `docs/generate_reference.py`. Their examples are run by",
        "the tests. What the numbers do at the edges is in [Numerics](../numerics.md).",
        "",
        "| page | names |",
        "|---|---|",
    ]
    for file, (title, names) in pages.items():
        lines.append(f"| [{title}]({file}.md) | {', '.join(f'`{n}`' for n in names)} |")
    return "\n".join(lines) + "\n"


def generate() -> dict[str, str]:
    """Every page by the name of its file."""
    written: dict[str, str] = {}
    listed: dict[str, tuple[str, list[str]]] = {}
    for file, group in PAGES.items():
        members = tensor_members(group)
        written[file] = page(group.title, group.about, group.prefix, members)
        listed[file] = group.title, [n for n, _ in members]
    for file, (module, prefix, about) in NN.items():
        members = module_members(module)
        title = f"`{prefix}`"
        written[file] = page(title, about, prefix, members)
        listed[file] = title, [n for n, _ in members]
    for file, (module, about) in AUTHORS.items():
        written[file] = author_page(module, about)
        listed[file] = f"`{module.__name__}`", [n for n, _ in module_members(module)]
    top = [(n, getattr(tinycore, n)) for n in sorted(tinycore.__all__)]
    functions = [(n, v) for n, v in top if inspect.isroutine(v) or inspect.isclass(v)]
    written["top"] = page("`tinycore`", "What `from tinycore import` gives.", "tinycore", functions)
    listed["top"] = "`tinycore`", [n for n, _ in top]
    written["dtypes"] = dtype_page()
    listed["dtypes"] = "`dtypes`", [dtype.name for dtype in dtypes.all]
    written["settings"] = settings_page()
    listed["settings"] = "Environment variables", [row.name for row in settings]
    written["index"] = index_page(listed)
    return {f"{file}.md": text for file, text in written.items()}


def main() -> None:
    """Write the pages, and remove those that are no more."""
    pages = generate()
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for file, text in pages.items():
        (FOLDER / file).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
