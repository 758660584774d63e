"""The call of an operator's implementation: inputs, attributes, the run it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy

from tiny_onnx.model import Node
from tiny_onnx.values import Data, Value, as_array, as_tensor
from tinycore import Tensor
from tinycore.dtype import DType
from tinycore.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    from tiny_onnx.run import Run, Scope

__all__ = ["Call"]

MISSING: Any = object()


class Call:
    """One execution of one node."""

    __slots__ = ("attributes", "inputs", "node", "run", "scope", "version")

    def __init__(
        self,
        run: Run,
        scope: Scope,
        node: Node,
        inputs: tuple[Value, ...],
        attributes: dict[str, Any],
        version: int,
    ) -> None:
        self.run = run
        self.scope = scope
        self.node = node
        self.inputs = inputs
        self.attributes = attributes
        self.version = version

    def __len__(self) -> int:
        return len(self.inputs)

    def has(self, index: int) -> bool:
        """True if an input is given."""
        return index < len(self.inputs) and self.inputs[index].data is not None

    def data(self, index: int) -> Data:
        """An input as it is, None where it is left out."""
        return self.inputs[index].data if index < len(self.inputs) else None

    def tensor(self, index: int) -> Tensor:
        """An input on the device. Raises ArgumentError if it is left out."""
        if not self.has(index):
            raise ArgumentError(f"{self.node}: input {index} is missing.")
        return as_tensor(self.inputs[index].data, self.run.device)

    def optional(self, index: int) -> Tensor | None:
        """An input on the device, None where it is left out."""
        return self.tensor(index) if self.has(index) else None

    def tensors(self) -> list[Tensor]:
        """All inputs on the device."""
        return [self.tensor(index) for index in range(len(self.inputs))]

    def is_fixed(self, *indices: int) -> bool:
        """True if inputs depend on no input of the model, and this node runs once in each run."""
        inputs = [self.inputs[index] for index in indices if index < len(self.inputs)]
        return self.scope.is_once and all(each.is_fixed for each in inputs)

    def kept(self, what: str, indices: Iterable[int], make: Callable[[], Tensor]) -> Tensor:
        """A tensor that `make` computes of these inputs: once, if they are fixed."""
        if not self.is_fixed(*indices):
            return make()
        folded, part = self.run.folded, (id(self.node), what)
        if part not in folded:
            folded[part] = [Value(make(), is_fixed=True)]
        return as_tensor(folded[part][0].data)

    def array(self, index: int) -> numpy.ndarray:
        """An input on the host: a tensor is computed, and the run notes what it depends on."""
        if not self.has(index):
            raise ArgumentError(f"{self.node}: input {index} is missing.")
        value = self.inputs[index]
        if isinstance(value.data, Tensor):
            self.run.reads(value)
        return as_array(value.data)

    def ints(self, index: int, attribute: str = "", default: Any = MISSING) -> list[int]:
        """Whole numbers from an input or, in older versions, from an attribute."""
        if self.has(index):
            return [int(each) for each in self.array(index).reshape(-1)]
        if attribute in self.attributes:
            return [int(each) for each in self.attributes[attribute]]
        if default is MISSING:
            raise ArgumentError(f"{self.node}: input {index} is missing.")
        found: list[int] = default
        return found

    def number(self, index: int, default: Any = MISSING) -> Any:
        """A single number from an input."""
        if not self.has(index):
            if default is MISSING:
                raise ArgumentError(f"{self.node}: input {index} is missing.")
            return default
        return self.array(index).reshape(()).item()

    def get(self, name: str, default: Any = MISSING) -> Any:
        """An attribute. Raises ArgumentError if it is absent and has no default."""
        if name in self.attributes:
            return self.attributes[name]
        if default is MISSING:
            raise ArgumentError(f"{self.node}: attribute {name!r} is missing.")
        return default

    def real(self, name: str, default: float | None = None) -> float:
        """An attribute that is a number. Raises ArgumentError if it is absent without a default."""
        return float(self.get(name) if default is None else self.get(name, default))

    def axis(self, name: str, rank: int, default: int) -> int:
        """An attribute that names an axis, counted from the front."""
        axis = int(self.get(name, default))
        return axis + rank if axis < 0 else axis

    def wants(self, output: int) -> bool:
        """True if the graph uses an output."""
        return output < len(self.node.outputs) and bool(self.node.outputs[output])

    def unsupported(self, what: str) -> UnsupportedError:
        """An error that names the node."""
        return UnsupportedError(f"{self.node}: {what}")

    def constant(self, value: Any, dtype: DType, shape: tuple[int, ...] = ()) -> Tensor:
        """A tensor of one number on the run's device."""
        return Tensor(value, self.run.device, dtype).expand(shape)
