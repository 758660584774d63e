"""The generator of a plugin's `_native.py`: its C declarations in cffi's out-of-line form.

Importing such a module takes a millisecond, where parsing the declarations would take
thirty. A plugin keeps the text in a module of its own (DECLARATIONS, and MODULE, the full name of
what is made of it), commits both, and has a test that holds the two together.

    python -m tiny_testing.native src/tiny_example/_cdef.py
"""

from __future__ import annotations

import ast
import runpy
import string
import sys
from pathlib import Path
from typing import Final

HEAD: Final = "# ruff: noqa\n# mypy: ignore-errors\n"
PLAIN: Final = frozenset(string.ascii_letters + string.digits + "_")


def write_native(module: str, declarations: str, target: Path) -> None:
    """Write the module for some C declarations: `module` is its full name, `target` its file.

    Raises cffi.CDefError for what is no C declaration.
    """
    from cffi import FFI  # noqa: PLC0415  its parser is needed here only

    ffi = FFI()
    ffi.cdef(declarations)
    ffi.set_source(module, None)
    ffi.emit_python_code(str(target))
    target.write_text(HEAD + formatted(target.read_text(encoding="utf-8")), encoding="utf-8")


def main(files: list[str]) -> None:
    """Write `_native.py` beside each file named, which defines MODULE and DECLARATIONS."""
    for file in files:
        defined = runpy.run_path(file)
        target = Path(file).with_name("_native.py")
        write_native(defined["MODULE"], defined["DECLARATIONS"], target)


def formatted(made: str) -> str:
    """cffi's module, which is one call, in the layout that formatters keep."""
    head, _, text = made.partition("ffi = ")
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    rows = [literal(value) for value in call.args]
    rows += [f"{keyword.arg}={literal(keyword.value)}" for keyword in call.keywords]
    arguments = "".join(f"    {row},\n" for row in rows)
    return f"{head}ffi = {ast.unparse(call.func)}(\n{arguments})\n"


def literal(node: ast.expr, depth: int = 1) -> str:
    """A constant: strings in double quotes, the elements of a longer tuple on a line each."""
    if isinstance(node, ast.Tuple) and len(node.elts) == 1:
        return f"({literal(node.elts[0], depth)},)"
    if isinstance(node, ast.Tuple):
        pad = "    " * depth
        rows = (f"{pad}    {literal(item, depth + 1)},\n" for item in node.elts)
        return f"(\n{''.join(rows)}{pad})"
    value = ast.literal_eval(node)
    if isinstance(value, bytes):
        shown = (chr(byte) if chr(byte) in PLAIN else f"\\x{byte:02x}" for byte in value)
        return 'b"' + "".join(shown) + '"'
    return f'"{value}"' if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    main(sys.argv[1:])
