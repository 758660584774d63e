"""Size of the code in tokens: each folder of the core, each package, and tinygrad's parts beside.

    python -m benchmarks.size [FOLDER]

FOLDER is a checkout, this one unless given. Tokens are those of Python's `tokenize` without
comments, docstrings and layout, so neither prose nor formatting costs anything, and an f-string is
one token. tests/test_size.py holds the budgets; tinygrad is counted where it is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from benchmarks.measure_code import Source, table

FLOORS: Final = ("uop", "device", "render", "schedule", "lower", "engine", "tensor")
"""Folders of floors 1 to 5; floor 0 is the files beside them."""
ABOVE: Final = ("groups.py", "helpers.py", "__main__.py")
"""Files of `tinycore/` that lie above floor 5."""
MOVED: Final = ("plugins/tiny_hcq", "tinycore/linalg")
"""Parts of floors 0 to 5 until they moved: a move is no saving."""
MOVED_FILES: Final = (
    *(f"plugins/tiny_qcom/src/tiny_qcom/{name}.py" for name in ("banks", "layout", "textures")),
    "plugins/tiny_cpu/src/tiny_cpu/tiles.py",
    *(
        f"plugins/tiny_nv/src/tiny_nv/{name}.py"
        for name in (
            *("async_copies", "boxes", "copied_fills", "phases"),
            *("tensor_map", "window_plans", "windows"),
        )
    ),
)
"""Files of packages that were in floors 0 to 5."""

PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "dtypes": ("dtype.py", "dtype.py _dtype.py"),
    "uop": ("uop/*", "uop/*"),
    "renderers: base, C, LLVM": (
        "renderer/__init__.py renderer/cstyle.py renderer/llvmir.py",
        "render/*",
    ),
    "schedule": ("schedule/*", "schedule/*"),
    "lowering": ("codegen/*", "lower/*"),
    "engine, search, captures below Tensor": ("engine/*", "engine/*"),
    "devices": ("device.py", "device/* plugin.py"),
    "Tensor, gradients": ("tensor.py mixin/* function.py", "tensor/* linalg/*"),
    "nn without ONNX": ("nn/__init__.py nn/optim.py nn/state.py nn/datasets.py", "nn/*"),
    "reference interpreter, NULL": ("runtime/ops_python.py runtime/ops_null.py", "builtin/*"),
    "helpers, settings, cache": (
        "helpers.py",
        "helpers.py config.py _setting.py cache.py errors.py trace.py _*.py",
    ),
}
"""Comparable parts: patterns of files of tinygrad and of `tinycore/`. A file counts once, in the
first part that names it. Queues are counted below, as tinycore has them in a package."""
QUEUES: Final = ("runtime/support/hcq.py runtime/support/elf.py runtime/graph/hcq.py", "tiny_hcq")


@cache
def tokens_of(path: Path) -> int:
    """Tokens of a file."""
    return Source(path, path.read_text("utf-8")).tokens


def folder_sizes(root: Path) -> dict[str, int]:
    """Tokens of each folder of the core, its subfolders apart, and of each package in plugins/."""
    sizes: dict[str, int] = {}
    for path in sorted((root / "tinycore").rglob("*.py")):
        folder = path.parent.relative_to(root).as_posix()
        sizes[folder] = sizes.get(folder, 0) + tokens_of(path)
    for package in sorted((root / "plugins").glob("*/src")):
        name = package.parent.relative_to(root).as_posix()
        sizes[name] = sum(map(tokens_of, package.rglob("*.py")))
    return sizes


def sums(root: Path) -> dict[str, int]:
    """Tokens of the core, of its floors 0 to 5 alone, and of these with what moved out of them."""
    sizes = folder_sizes(root)
    core = sum(size for name, size in sizes.items() if name.startswith("tinycore"))
    below = [f"tinycore/{floor}" for floor in FLOORS]
    floors = sum(
        size
        for name, size in sizes.items()
        if "/".join(name.split("/")[:2]) in (*below, "tinycore")
    )
    above = [root / "tinycore" / name for name in ABOVE]
    floors -= sum(tokens_of(path) for path in above if path.exists())
    moved = sum(
        size for name, size in sizes.items() for part in MOVED if f"{name}/".startswith(f"{part}/")
    )
    moved += sum(tokens_of(root / name) for name in MOVED_FILES if (root / name).exists())
    return {"core": core, "floors 0 to 5": floors, "with what moved out": floors + moved}


def matching(folder: Path, patterns: str, taken: set[Path]) -> int:
    """Tokens of the files below a folder whose path matches a pattern, unless they are `taken`."""
    found = [
        path
        for path in sorted(folder.rglob("*.py"))
        if path not in taken
        and any(fnmatch(path.relative_to(folder).as_posix(), p) for p in patterns.split())
    ]
    taken.update(found)
    return sum(map(tokens_of, found))


def comparison(root: Path, peer: Path) -> Iterator[tuple[object, ...]]:
    """Rows of tinygrad's parts beside tinycore's."""
    ours: set[Path] = set()
    theirs: set[Path] = set()
    total = [0, 0]
    rows = [
        (name, matching(peer, other, theirs), matching(root / "tinycore", own, ours))
        for name, (other, own) in PARTS.items()
    ]
    support = root / "plugins" / QUEUES[1] / "src"
    rows.append(("queues, ELF", matching(peer, QUEUES[0], theirs), matching(support, "*", ours)))
    for name, other, own in rows:
        total[0] += other
        total[1] += own
        yield name, other, own, f"{own / other:.2f}" if other else "-"
    yield "**all**", *total, f"{total[1] / total[0]:.2f}"


def report(root: Path) -> Iterator[str]:
    """Lines of the page."""
    yield from ("# Size in tokens", "", "Written by `python -m benchmarks.size`.", "")
    yield from table(("", "tokens"), sums(root).items())
    yield ""
    yield from table(("folder", "tokens"), folder_sizes(root).items())
    yield ""
    found = find_spec("tinygrad")
    if found is None or not found.submodule_search_locations:
        yield "tinygrad is not installed here, so nothing stands beside."
        return
    peer = Path(next(iter(found.submodule_search_locations)))
    yield from table(("part", "tinygrad", "tinycore", "ratio"), comparison(root, peer))


if __name__ == "__main__":
    print("\n".join(report(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])))
