"""One execution of a model: nodes in order, scopes of names, functions, values on the host.

An operator is computed by, in this order: `onnx.reference` on the host if all its inputs are small
arrays there (shapes, axes, constants); its implementation in `ops/`; a local function of the
model; the function by which the standard defines it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy
import onnx
from onnx import NodeProto, TypeProto, helper, numpy_helper

from tiny_onnx.call import Call
from tiny_onnx.element_types import ELEMENTS, element_of
from tiny_onnx.model import Function, Graph, Model, Node, Reader, Reference
from tiny_onnx.reference import evaluated
from tiny_onnx.registry import find
from tiny_onnx.values import NOTHING, Data, Value, as_array
from tinycore import Tensor
from tinycore.errors import FileFormatError, OutOfMemory, TinycoreError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Part", "Run", "Scope"]

MOST_ON_HOST: Final = 4096
"""Elements up to which a node whose inputs lie on the host is computed there."""
NOT_FIXED: Final = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
     "Multinomial", "Dropout", "If", "Loop", "Scan", "SequenceMap")
)  # fmt: skip
"""Operators with random results, or with graphs that may have them."""
GROWING: Final[Mapping[str, Sequence[int]]] = {
    "AffineGrid": (1,), "BlackmanWindow": (0,), "CenterCropPad": (1,), "Col2Im": (1,),
    "DFT": (1,), "Expand": (1,), "HammingWindow": (0,), "HannWindow": (0,), "MaxRoiPool": (),
    "MelWeightMatrix": (0, 1), "OneHot": (1,), "Pad": (1,), "Range": (0, 1, 2), "Resize": (2, 3),
    "RoiAlign": (), "Tile": (1,), "Upsample": (1,),
}  # fmt: skip
"""Operators whose results are as large as numbers say, in these inputs or in attributes."""
MOST_GROWN: Final = 1 << 26
"""Product of such numbers up to which the host computes the result."""
MOST_NODES: Final = 1_000_000
"""Nodes that one run computes, where graphs and functions may repeat each other at will."""
DEEPEST: Final = 200
"""Functions and graphs inside of each other, of which a hostile model may have any number."""


Part: TypeAlias = tuple[int, str]
"""The identity of a node, and what it makes of its weights; "" for its outputs."""


class Scope:
    """Names in the scope of a graph: its own, then those of the graph around it.

    `is_once` holds for a graph that runs at most once in a run: that of the model, and branches of
    its `If`s; not for bodies of loops and functions.
    """

    __slots__ = ("depth", "is_once", "opsets", "outer", "values")

    def __init__(
        self,
        values: dict[str, Value],
        opsets: Mapping[str, int],
        outer: Scope | None = None,
        depth: int = 0,
        is_once: bool = False,
    ) -> None:
        self.values = values
        self.is_once = is_once
        self.opsets = opsets
        self.outer = outer
        self.depth = depth
        if depth > DEEPEST:
            raise FileFormatError(f"the model nests more than {DEEPEST} graphs and functions.")

    def __getitem__(self, name: str) -> Value:
        if not name:
            return NOTHING
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise FileFormatError(f"nothing computes {name!r} before it is read.")

    def inside(self, values: dict[str, Value], is_branch: bool) -> Scope:
        """The scope of a graph that belongs to a node here: it sees these names, too."""
        return Scope(values, self.opsets, self, self.depth + 1, self.is_once and is_branch)

    def version(self, domain: str) -> int:
        """The version of an operator set; the newest where a model does not say."""
        return self.opsets.get(domain, onnx.defs.onnx_opset_version() if not domain else 1)


class Run:
    """One execution: its device, and the graph inputs whose contents it had to read on the host.

    `folded` has what depends on no input, from runs before: outputs of nodes in branches, and what
    other nodes make of their weights (`Call.kept`). This run adds its own.
    """

    def __init__(
        self, model: Model, device: str | None, folded: Mapping[Part, list[Value]]
    ) -> None:
        self.model = model
        self.device = device
        self.read: set[str] = set()
        self.left = MOST_NODES
        self.folded = dict(folded)

    def reads(self, value: Value) -> None:
        """Note that the contents of a value decide what is computed."""
        self.read |= value.sources

    def execute(self, nodes: Sequence[Node], scope: Scope) -> None:
        """Compute nodes in order, their results into the scope."""
        self.spend(1 + len(nodes))
        for node in nodes:
            scope.values.update(zip(node.outputs, self.node(node, scope), strict=False))

    def spend(self, count: int) -> None:
        """Take nodes, or steps of one, from those that a run may compute."""
        self.left -= count
        if self.left < 0:
            raise UnsupportedError(f"the model computes more than {MOST_NODES} nodes in one call.")

    def branch(self, graph: Graph, scope: Scope) -> list[Value]:
        """The outputs of a branch of an `If` in `scope`."""
        return self.graph(graph, scope, is_branch=True)

    def graph(
        self, graph: Graph, scope: Scope, given: Iterable[Value] = (), *, is_branch: bool = False
    ) -> list[Value]:
        """The outputs of a graph that belongs to a node in `scope`, for its inputs in order."""
        values = {name: Value(array, is_fixed=True) for name, array in graph.weights.items()}
        values |= dict(zip(graph.inputs, given, strict=False))
        inner = scope.inside(values, is_branch)
        self.execute(graph.nodes, inner)
        return [inner[name] for name in graph.outputs]

    def node(self, node: Node, scope: Scope) -> list[Value]:
        """The outputs of a node."""
        if scope.is_once and (id(node), "") in self.folded:
            return self.folded[id(node), ""]
        inputs = tuple(scope[name] for name in node.inputs)
        sources = frozenset[str]().union(*(each.sources for each in inputs))
        is_fixed = node.op not in NOT_FIXED and all(each.is_fixed for each in inputs)
        try:
            outputs = self.on_host(node, inputs, scope)
            if outputs is None:
                outputs = self.computed(node, inputs, scope)
        except TinycoreError:
            raise
        except MemoryError as error:
            raise OutOfMemory(f"{node}: {error}") from error
        except Exception as error:  # of operators that meet what the standard does not allow
            text = f"{type(error).__name__}: {error}"
            raise FileFormatError(f"{node} cannot be computed: {text}") from error
        found = [
            Value(each.data, each.sources, each.is_fixed and is_fixed)  # a branch may be fixed
            if isinstance(each, Value)
            else Value(each, sources, is_fixed)
            for each in outputs
        ]
        if is_fixed and scope.is_once and scope.depth:  # of depth 0 the runner keeps what is used
            self.folded[id(node), ""] = found
        return found

    def on_host(
        self, node: Node, inputs: tuple[Value, ...], scope: Scope
    ) -> Sequence[Data | Value] | None:
        """Outputs computed by NumPy if all that a node needs is there, and little."""
        arrays = [each.data for each in inputs]
        if node.op in NOT_FIXED or node.domain not in ("", "ai.onnx.ml"):
            return None
        if not all(each is None or isinstance(each, numpy.ndarray) for each in arrays):
            return None
        if sum(each.size for each in arrays if isinstance(each, numpy.ndarray)) > MOST_ON_HOST:
            return None
        if node.op == "ConstantOfShape" and numpy.prod(arrays[0]) > MOST_ON_HOST:  # type: ignore[arg-type]
            return None
        if any(isinstance(each, Graph | Reference) for each in node.attributes.values()):
            return None
        if node.op in GROWING and grown(node, arrays) > MOST_GROWN:
            return None
        return evaluated(node.proto, arrays, scope.version(node.domain))

    def computed(
        self, node: Node, inputs: tuple[Value, ...], scope: Scope
    ) -> Sequence[Data | Value]:
        """Outputs by an implementation, or by a function that defines the operator."""
        local = self.model.functions.get(
            (node.domain, node.op, node.proto.overload)
        ) or self.model.functions.get((node.domain, node.op, ""))
        version = scope.version(node.domain)
        if local is not None:
            return self.function(local, node.attributes, inputs, scope)
        found = find(node.domain, node.op, version)
        if found is None:
            return self.by_standard(node, inputs, version, scope)
        call = Call(self, scope, node, inputs, node.attributes, version)
        try:
            outputs = found(call)
        except TinycoreError as error:
            error.add_note(f"in node {node}")
            raise
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def function(
        self,
        function: Function,
        attributes: Mapping[str, Any],
        inputs: tuple[Value, ...],
        scope: Scope,
    ) -> list[Value]:
        """The outputs of a function's body, which sees its inputs and nothing else."""
        graph = function.graph
        known = {**function.defaults, **attributes}
        given = [*inputs, *[NOTHING] * (len(graph.inputs) - len(inputs))]
        inner = Scope(
            dict(zip(graph.inputs, given, strict=True)),
            function.opsets or scope.opsets,
            depth=scope.depth + 1,
        )
        self.execute([bound(node, known) for node in graph.nodes], inner)
        return [inner[name] for name in graph.outputs]

    def by_standard(
        self, node: Node, inputs: tuple[Value, ...], version: int, scope: Scope
    ) -> list[Value]:
        """The outputs of an operator that the standard defines by simpler ones."""
        schema: Any = None  # `onnx` types few of its members
        with suppress(onnx.defs.SchemaError):
            schema = onnx.defs.get_schema(node.op, version, node.domain)
        body = b""
        if schema is not None and schema.has_context_dependent_function:
            types = [type_of(each.data).SerializeToString() for each in inputs]
            body = schema.get_context_dependent_function(node.proto.SerializeToString(), types)
        elif schema is not None and schema.has_function:
            body = schema.function_body.SerializeToString()
        if schema is None or not body:
            raise UnsupportedError(
                f"operator {node} of version {version} is not supported by tiny_onnx."
            )
        proto = onnx.FunctionProto.FromString(body)
        attributes = {
            name: Reader("", None).attribute(each.default_value)
            for name, each in schema.attributes.items()
            if each.default_value.type
        }
        function = Reader(f"the standard's {node.op}", None).function(proto)
        return self.function(function, {**attributes, **node.attributes}, inputs, scope)


def grown(node: Node, arrays: Sequence[Data]) -> float:
    """The product of the numbers that decide how large a node's result is."""
    numbers = [arrays[place] for place in GROWING[node.op] if place < len(arrays)]
    numbers += [numpy.asarray(each) for each in node.attributes.values()]
    found = [e for e in numbers if isinstance(e, numpy.ndarray) and e.dtype.kind in "fiu"]
    with numpy.errstate(all="ignore"):
        sizes = [numpy.fmax(abs(each.astype(float)), 1).prod() for each in found]
        return float(numpy.prod(sizes))


def bound(node: Node, known: Mapping[str, Any]) -> Node:
    """A node of a function with the attributes that the caller gives in place of references."""
    references = {
        name: each for name, each in node.attributes.items() if isinstance(each, Reference)
    }
    graphs = {name: each for name, each in node.attributes.items() if isinstance(each, Graph)}
    if not references and not graphs:
        return node
    attributes = {name: each for name, each in node.attributes.items() if name not in references}
    attributes |= {
        name: known[each.name] for name, each in references.items() if each.name in known
    }
    for name, graph in graphs.items():
        attributes[name] = replace(graph, nodes=[bound(each, known) for each in graph.nodes])
    return replace(node, attributes=attributes, proto=proto_of(node, attributes))


def proto_of(node: Node, attributes: Mapping[str, Any]) -> NodeProto:
    """The message of a node with other attributes, without its graphs."""
    plain = {
        name: numpy_helper.from_array(each) if isinstance(each, numpy.ndarray) else each
        for name, each in attributes.items()
        if not isinstance(each, Graph)
    }
    return helper.make_node(
        node.op,
        node.inputs,
        node.outputs,
        domain=node.domain,
        overload=node.proto.overload,
        **plain,
    )


NUMBERS: Final = {
    element.tensor: number for number, element in reversed(ELEMENTS.items()) if element.tensor
}


def type_of(data: Data) -> TypeProto:
    """The type of a value, as functions of the standard that depend on it are told."""
    if isinstance(data, Tensor):
        return helper.make_tensor_type_proto(NUMBERS[data.dtype], list(data.shape))
    if isinstance(data, numpy.ndarray):
        element = element_of(data)
        number = next(number for number, each in ELEMENTS.items() if each is element)
        return helper.make_tensor_type_proto(number, list(data.shape))
    if isinstance(data, list) and data:
        return helper.make_sequence_type_proto(type_of(data[0]))
    return TypeProto()


def host_copy(data: Data) -> Data:
    """A value whose tensors are arrays of the host, sequences included."""
    if isinstance(data, list):
        return [host_copy(each) for each in data]
    return None if data is None else as_array(data)
