"""Tensors and nodes in a notebook: shape, dtype, device, an excerpt of what is computed; graphs."""

from __future__ import annotations

import sys
from html import escape
from typing import Any, Final

from tiny_viz.picture import svg_of
from tinycore import Tensor
from tinycore.errors import TinycoreError
from tinycore.schedule.items import ScheduleItem
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["show_tensors", "tensor_html"]

EDGE: Final = 4
"""Elements at each end of an axis that are shown."""
MOST_BYTES: Final = 1 << 20
"""Memory that is copied from a device to be shown."""


def show_tensors() -> None:
    """Let the running IPython show tensors as `tensor_html` writes them, and nodes and kernels as
    pictures."""
    shell: Any = sys.modules["IPython"].get_ipython()
    if shell is not None:
        formatters = shell.display_formatter.formatters
        formatters["text/html"].for_type(Tensor, tensor_html)
        for kind in (UOp, ScheduleItem):
            formatters["image/svg+xml"].for_type(kind, svg_of)


def tensor_html(tensor: Tensor) -> str:
    """The shape, dtype and device of a tensor, with an excerpt if it is memory.

    Nothing is computed to show a tensor.
    """
    shape = " × ".join(map(str, tensor.shape)) or "a number"
    about = f"<b>Tensor</b> {escape(shape)}, {tensor.dtype.name}, on {escape(str(tensor.device))}"
    if base_of(tensor.uop).op is not Op.BUFFER:
        return f"<p>{about}, not computed yet</p>"
    if tensor.nbytes() > MOST_BYTES:
        return f"<p>{about}</p>"
    try:
        values = tensor.tolist()
    except TinycoreError as error:  # as inside of a step that is being captured
        return f"<p>{about}, {escape(str(error))}</p>"
    while isinstance(values, list) and values and isinstance(values[0], list):
        if not isinstance(values[0][0] if values[0] else None, list):
            break
        values = values[0]
        about += ", the first of an axis"
    return f"<p>{about}</p>{excerpt(values)}"


def excerpt(values: Any) -> str:
    """The ends of rows and columns of a number, a list, or a list of lists."""
    if not isinstance(values, list):
        return f"<p>{escape(shown(values))}</p>"
    rows = values if values and isinstance(values[0], list) else [values]
    cells = [
        "".join(f"<td>{'⋮' if row is None else cell}</td>" for cell in ends(row or rows[0]))
        for row in ends_of(rows)
    ]
    return f"<table><tbody>{''.join(f'<tr>{row}</tr>' for row in cells)}</tbody></table>"


def ends_of(items: list[Any]) -> list[Any]:
    """The first and last items, with None for those between."""
    return items if len(items) <= 2 * EDGE else [*items[:EDGE], None, *items[-EDGE:]]


def ends(row: list[Any]) -> list[str]:
    """The first and last numbers of a row as text."""
    return ["…" if value is None else escape(shown(value)) for value in ends_of(row)]


def shown(value: Any) -> str:
    """A number as text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
