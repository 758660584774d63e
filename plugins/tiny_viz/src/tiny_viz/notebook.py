"""Tensors and graphs in a notebook."""

from __future__ import annotations

import sys
from html import escape
from typing import Any, Final

from tinycore import Tensor
from tinycore.uop.movement import base_of
from tinycore.uop.op import Op

__all__ = ["show_tensors", "tensor_html"]

MOST_SHOWN: Final = 8
"""Rows and columns of a tensor that are shown."""


def show_tensors() -> None:
    """Let the running IPython show tensors as `tensor_html` writes them."""
    shell: Any = sys.modules["IPython"].get_ipython()
    if shell is not None:
        shell.display_formatter.formatters["text/html"].for_type(Tensor, tensor_html)


def tensor_html(tensor: Tensor) -> str:
    """Shape, dtype and device of a tensor, and an excerpt where it is memory already.

    Nothing is computed to show a tensor.
    """
    shape = " x ".join(map(str, tensor.shape)) or "a number"
    about = f"Tensor, {shape}, {tensor.dtype.name}, on {tensor.device}"
    if base_of(tensor.uop).op is not Op.BUFFER:
        return f"<p>{escape(about)}, not computed yet</p>"
    return f"<p>{escape(about)}</p>"
