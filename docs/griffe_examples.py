"""An extension of mkdocstrings: examples with a prompt become blocks of code.

Docstrings are Markdown, where `>>> ` would begin a quotation. `mkdocs.yml` names this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import griffe


def fenced(text: str) -> Iterator[str]:
    """The lines of a docstring; examples, each up to an empty line, within fences."""
    inside = False
    for line in text.splitlines():
        if not inside and line.startswith(">>> "):
            inside = True
            yield "```python"
        elif inside and not line.strip():
            inside = False
            yield "```"
        yield line
    if inside:
        yield "```"


class Examples(griffe.Extension):
    """Puts the examples of every docstring within fences."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = "\n".join(fenced(obj.docstring.value))
