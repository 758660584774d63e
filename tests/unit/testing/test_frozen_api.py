"""The other parts of the face for backends, frozen: `render`, `tiling`, and the linear UOps.

What a renderer is given and may inherit from is written down in `frozen/`. A change that only adds
is a new minor version of the plugin API, anything else a new major one; see
`tinycore/device/backend.py`. After deciding, run `python tests/unit/testing/test_frozen_api.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from tinycore import render, tiling
from tinycore.device.backend import API_VERSION
from tinycore.uop.op import ALU, ANY, Op
from tinycore.uop.stages import EVERYWHERE, LAUNCH_NAMES, LEGAL, LOOPS

ADVICE = """what plugins rely on changed.
new: {added}
gone: {removed}
If nothing is gone, raise the minor API_VERSION, else the major; then run
`python tests/unit/testing/test_frozen_api.py`, and review the difference."""
FROZEN = Path(__file__).with_name("frozen")


def text_of(hint: object) -> str:
    """An annotation as it is written; those of a named tuple are ForwardRefs in some versions."""
    hint = getattr(hint, "__forward_arg__", hint)
    return hint if isinstance(hint, str) else inspect.formatannotation(hint)


def members(cls: type) -> list[str]:
    """The public fields and methods that a class states itself."""
    hints = inspect.get_annotations(cls)
    fields = [f"    {name}: {text_of(hint)}" for name, hint in hints.items() if name[0] != "_"]
    functions = [
        f"    {name}{inspect.signature(value)}"
        for name, value in vars(cls).items()
        if inspect.isfunction(value) and name[0] != "_"
    ]
    facts = [
        f"    {name}"
        for name, value in vars(cls).items()
        if name[0] != "_" and name not in hints and type(value).__name__ in ("cached_property",)
    ]
    return [*fields, *sorted(functions), *sorted(facts)]


def names_of(module: ModuleType) -> str:
    """The public names of a module of the face."""
    lines = [f"version {'.'.join(map(str, API_VERSION))}"]
    for name in sorted(module.__all__):
        value = getattr(module, name)
        if inspect.isclass(value):
            lines += [f"class {name}", *members(value)]
        elif not inspect.isfunction(value):
            lines.append(f"{name} = {value!r}")
        else:
            lines.append(f"{name}{inspect.signature(value)}")
    return "\n".join(lines) + "\n"


def linear_program() -> str:
    """Description of a linear program: each op with its sources and its meaning."""
    lines = [f"version {'.'.join(map(str, API_VERSION))}"]
    for op in Op:
        if op in LEGAL["linear"]:
            sources = "any" if op.arity == ANY else str(op.arity)
            lowered = " (where native)" if op in ALU - EVERYWHERE else ""
            lines.append(f"{op.name} {sources}: {op.__doc__}{lowered}")
    lines.append(f"SPECIAL is one of: {', '.join(sorted(LAUNCH_NAMES))}")
    lines.append(f"RANGE is one of: {', '.join(sorted(kind.name for kind in LOOPS))}")
    return "\n".join(lines) + "\n"


FACES: dict[str, Callable[[], str]] = {
    "render.txt": partial(names_of, render),
    "tiling.txt": partial(names_of, tiling),
    "linear.txt": linear_program,
}


@pytest.mark.parametrize("name", FACES)
def test_the_face_is_as_frozen(name: str) -> None:
    expected, found = (FROZEN / name).read_text("utf-8"), FACES[name]()
    added = sorted(set(found.splitlines()) - set(expected.splitlines()))
    removed = sorted(set(expected.splitlines()) - set(found.splitlines()))

    assert found == expected, ADVICE.format(added=added, removed=removed)


if __name__ == "__main__":
    FROZEN.mkdir(exist_ok=True)
    for name, face in FACES.items():
        (FROZEN / name).write_text(face(), "utf-8")
