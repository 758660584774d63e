"""The face of tinycore for backends, frozen: plugins may rely on what plugin_api.txt says.

A change that only adds is a new minor version, anything else a new major one. After deciding,
run `python tests/unit/device/test_plugin_api.py` to write the file anew.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from tinycore import plugin
from tinycore.device.backend import API_VERSION

FROZEN = Path(__file__).with_name("plugin_api.txt")


def signature(name: str, value: object) -> str:
    return f"{name}{inspect.signature(value)}"  # type: ignore[arg-type]


def members(cls: type) -> list[str]:
    """The public fields and methods of a class."""
    hints = {
        name: hint if isinstance(hint, str) else inspect.formatannotation(hint)
        for name, hint in inspect.get_annotations(cls).items()
        if name[0] != "_"
    }
    fields = [f"    {name}: {hint}" for name, hint in hints.items()]
    methods = [
        "    " + signature(name, value)
        for name, value in vars(cls).items()
        if inspect.isfunction(value) and name not in hints
        if name[0] != "_" or name == "__call__"
    ]
    properties = [f"    {name}" for name, v in vars(cls).items() if isinstance(v, property)]
    return fields + sorted(properties + methods)


def face() -> str:
    """Every public name of `tinycore.plugin`, with its signature."""
    lines = [f"version {'.'.join(map(str, API_VERSION))}"]
    for name in sorted(plugin.__all__):
        value = getattr(plugin, name)
        if inspect.isclass(value):
            lines += [f"class {name}", *members(value)]
        elif inspect.isfunction(value):
            lines.append(signature(name, value))
        elif isinstance(value, dict):
            lines.append(f"{name}: {', '.join(value)}")
        else:
            lines.append(f"{name} = {value!r}")
    return "\n".join(lines) + "\n"


def test_the_face_is_as_frozen() -> None:
    assert face() == FROZEN.read_text("utf-8"), f"see {Path(__file__).name} for what to do"


if __name__ == "__main__":
    FROZEN.write_text(face(), "utf-8")
