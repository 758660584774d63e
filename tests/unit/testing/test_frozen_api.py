"""The other parts of the face for backends, frozen: `render`, `tiling`, and the linear UOps.

What a renderer is given and may inherit from is written down in `frozen/`. A change that only adds
is a new minor version of the plugin API, anything else a new major one; see
`tinycore/device/backend.py`. After deciding, run `python tests/unit/testing/test_frozen_api.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property, partial
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
STATED = {
    "KernelFacts": "has_order is_fixed itemsize launchable loads longest_reduction outputs "
    "outputs_launched overwrites reduced reduced_types reductions stored stride",
    "Draft": "around become copy cut do facts kernel lanes launch limits nest present size",
}
"""The members of a class that plugins use, where it has others: these may change (0096)."""
FROZEN = Path(__file__).with_name("frozen")


def text_of(hint: object) -> str:
    """An annotation as it is written; those of a named tuple are ForwardRefs in some versions."""
    hint = getattr(hint, "__forward_arg__", hint)
    return hint if isinstance(hint, str) else inspect.formatannotation(hint)


def members(cls: type) -> list[str]:
    """The public fields and methods that a class states itself, but for what a step does."""
    stated = STATED.get(cls.__name__, "").split()

    def is_stated(name: str) -> bool:
        return name[0] != "_" and (not stated or name in stated)

    hints = inspect.get_annotations(cls)
    fields = [f"    {name}: {text_of(hint)}" for name, hint in hints.items() if is_stated(name)]
    functions = [
        f"    {name}{inspect.signature(value)}"
        for name, value in vars(cls).items()
        if inspect.isfunction(value) and is_stated(name) and name != "apply"
    ]
    facts = [
        f"    {name}"
        for name, value in vars(cls).items()
        if is_stated(name) and name not in hints and isinstance(value, cached_property)
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
