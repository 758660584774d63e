"""Models as text: layers and optimizers with their sizes and settings, tables of parameters.

Floor 6. Imports the public API and this package's paths. Nothing is computed.
"""

from __future__ import annotations

from tinycore import Tensor
from tinycore.cli.tables import Table
from tinycore.nn.paths import attributes_of, tensors_by_path

__all__ = ["described", "summary"]


def described(found: object) -> str:
    """The settings of a layer or an optimizer, with shapes in place of its tensors."""
    shown = [
        f"{name}={text_of_setting(value)}"
        for name, value in attributes_of(found)
        if name[0] != "_" and value is not None
    ]
    return f"{type(found).__name__}({', '.join(shown)})"


def text_of_setting(value: object) -> str:
    """A shape for a tensor, the number for one that has a computed element, a count for a list."""
    if isinstance(value, Tensor):
        number, _, _ = repr(value).removeprefix("Tensor([").partition("]")
        return number.rstrip(".") if value.shape == (1,) and number[0] != "<" else str(value.shape)
    if isinstance(value, list) and value and isinstance(value[0], Tensor):
        return f"<{len(value)} tensors>"
    return repr(value)


class Summary(str):
    """A text that is shown as it is printed."""

    __slots__ = ()
    __repr__ = str.__str__


def summary(model: object) -> Summary:
    """A table of a model's layers: the tensors of each with their shapes, and how many numbers.

    Layers have the paths of `nn.state.get_state_dict`. A tensor with two paths counts once.

    >>> print(nn.summary({"first": nn.Linear(2, 3), "second": nn.Linear(3, 1, bias=False)}))
    layer   numbers  tensors
    first         9  weight (3, 2), bias (3,)
    second        3  weight (1, 3)
    in all       12  48 bytes
    """
    layers: dict[str, dict[str, Tensor]] = {}
    for path, tensor in tensors_by_path(model, "", Tensor).items():
        layer, _, name = path.rpartition(".")
        layers.setdefault(layer, {})[name] = tensor
    counted: dict[int, Tensor] = {}
    rows = []
    for layer, tensors in layers.items():
        new = {id(x): x for x in tensors.values() if id(x) not in counted}
        counted |= new
        shapes = ", ".join(f"{name} {x.shape}" for name, x in tensors.items())
        rows.append((layer, f"{sum(x.numel() for x in new.values()):,}", shapes))
    every = counted.values()
    size = f"{sum(x.nbytes() for x in every):,} bytes"
    rows.append(("in all", f"{sum(x.numel() for x in every):,}", size))
    return Summary(Table("<layer  >numbers  <tensors", rows))
