"""A model file, read and checked: nodes, attributes, weights, functions.

The file is untrusted. protobuf checks its structure; counts, lengths and paths are checked here.
Weights outside of the file are read from its folder alone, never through a link or a path that
leaves it, and never beyond the end of their file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    numpy_helper,
)

from tiny_onnx.element_types import named
from tinycore.errors import FileFormatError

__all__ = ["Function", "Graph", "Model", "Node", "Reference", "read"]

NEWEST: Final = onnx.defs.onnx_opset_version()
"""The newest operator set of ai.onnx that the installed `onnx` package describes."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute whose value a function receives from the node that calls it."""

    name: str


@dataclass(eq=False, slots=True)
class Node:
    """One operation: its names of inputs and outputs ("" where left out), and its attributes."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    proto: NodeProto

    def __str__(self) -> str:
        where = f" {self.name!r}" if self.name else ""
        return f"{self.domain + '.' if self.domain else ''}{self.op}{where}"


@dataclass(eq=False, slots=True)
class Graph:
    """Nodes in an order in which each follows what it reads, as the standard demands."""

    name: str
    nodes: list[Node]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: dict[str, numpy.ndarray] = field(default_factory=dict)
    types: dict[str, onnx.TypeProto] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Function:
    """An operation that a model, or the standard, defines by other nodes."""

    graph: Graph
    opsets: Mapping[str, int]
    defaults: Mapping[str, Any]


@dataclass(eq=False, slots=True)
class Model:
    """Content of a file: the main graph, versions of operator sets, local functions."""

    graph: Graph
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], Function]
    metadata: Mapping[str, str]


class Reader:
    """Turns messages of protobuf into `Graph`s; knows the folder where outside weights lie."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self.name = name
        self.folder = folder

    def model(self, proto: ModelProto) -> Model:
        """The parts of a model. Raises FileFormatError for one that contradicts itself."""
        opsets = versions(proto.opset_import)
        functions = {(f.domain, f.name, f.overload): self.function(f) for f in proto.functions}
        if not proto.HasField("graph"):
            raise FileFormatError(f"{self.name}: this is not an ONNX model: it has no graph.")
        metadata = {entry.key: entry.value for entry in proto.metadata_props}
        graph = self.graph(proto.graph)
        if proto.ir_version < 4:  # which lists every weight as an input, and so none as one
            graph.inputs = tuple(name for name in graph.inputs if name not in graph.weights)
        return Model(graph, opsets, functions, metadata)

    def function(self, proto: FunctionProto) -> Function:
        """A function's body and the defaults of its attributes."""
        graph = Graph(proto.name, self.nodes(proto.node), tuple(proto.input), tuple(proto.output))
        defaults = {each.name: self.attribute(each) for each in proto.attribute_proto}
        return Function(graph, versions(proto.opset_import), defaults)

    def graph(self, proto: GraphProto) -> Graph:
        """A graph with its weights in memory."""
        if proto.sparse_initializer:
            raise FileFormatError(f"{self.name}: sparse weights are not supported.")
        weights = {self.word(each.name): self.array(each) for each in proto.initializer}
        types = {self.word(each.name): each.type for each in (*proto.input, *proto.output)}
        inputs = tuple(self.word(each.name) for each in proto.input)
        outputs = tuple(self.word(each.name) for each in proto.output)
        return Graph(proto.name, self.nodes(proto.node), inputs, outputs, weights, types)

    def nodes(self, protos: Iterable[NodeProto]) -> list[Node]:
        """The nodes of a graph or of a function."""
        return [
            Node(
                self.word(proto.op_type),
                "" if proto.domain == "ai.onnx" else self.word(proto.domain),
                self.word(proto.name),
                tuple(map(self.word, proto.input)),
                tuple(map(self.word, proto.output)),
                {self.word(each.name): self.attribute(each) for each in proto.attribute},
                proto,
            )
            for proto in protos
        ]

    def word(self, name: object) -> str:
        """A name, which is text; protobuf gives bytes where they are no UTF-8."""
        if not isinstance(name, str):
            raise FileFormatError(f"{self.name}: the name {name!r} is not text.")
        return name

    def attribute(self, proto: AttributeProto) -> Any:
        """The value of an attribute: a number, text, array, graph, or a list of these."""
        if proto.ref_attr_name:
            return Reference(proto.ref_attr_name)
        kinds = AttributeProto.AttributeType.DESCRIPTOR.values_by_number
        kind = kinds[proto.type].name if proto.type in kinds else str(proto.type)
        match kind:
            case "STRING":
                return text(proto.s)
            case "STRINGS":
                return [text(each) for each in proto.strings]
            case "TENSOR":
                return self.array(proto.t)
            case "TENSORS":
                return [self.array(each) for each in proto.tensors]
            case "GRAPH":
                return self.graph(proto.g)
            case "GRAPHS":
                return [self.graph(each) for each in proto.graphs]
            case "FLOAT":
                return proto.f
            case "INT":
                return proto.i
            case "FLOATS":
                return list(proto.floats)
            case "INTS":
                return list(proto.ints)
            case "TYPE_PROTO":
                return proto.tp
        raise FileFormatError(f"{self.name}: attribute {proto.name!r} of kind {kind} is unknown.")

    def array(self, proto: TensorProto) -> numpy.ndarray:
        """A weight as an array. Raises FileFormatError if its bytes do not fill its shape."""
        where = f"{self.name}: weight {proto.name!r}"
        element = named(proto.data_type, where)
        if any(side < 0 for side in proto.dims):
            raise FileFormatError(f"{where} has the negative shape {list(proto.dims)}.")
        if proto.data_location == TensorProto.EXTERNAL:
            return self.outside(proto, element.array, where)
        try:
            return numpy_helper.to_array(proto)
        except (ValueError, TypeError, MemoryError) as error:
            raise FileFormatError(f"{where} of shape {list(proto.dims)}: {error}") from error

    def outside(
        self, proto: TensorProto, dtype: numpy.dtype[numpy.generic], where: str
    ) -> numpy.ndarray:
        """A weight whose bytes lie in another file of the folder, mapped into memory."""
        entries = {entry.key: entry.value for entry in proto.external_data}
        path = self.beside(entries.get("location", ""), where)
        bits = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}
        count = 1
        for side in proto.dims:
            count *= side
        wanted = -(-count * bits.get(dtype.name, dtype.itemsize * 8) // 8)
        try:
            offset = int(entries.get("offset", "0"))
            length = int(entries.get("length", wanted))
        except ValueError as error:
            raise FileFormatError(f"{where}: offset and length are numbers: {error}.") from error
        size = path.stat().st_size
        if length != wanted or offset < 0 or offset + length > size:
            raise FileFormatError(
                f"{where} needs {wanted} bytes; its entry says {length} at {offset}, and "
                f"{path.name} has {size}."
            )
        if not count:
            return numpy.empty(tuple(proto.dims), dtype)
        content = numpy.memmap(path, numpy.uint8, "r", offset, (length,))
        if dtype.name in bits:
            whole = TensorProto()
            whole.CopyFrom(proto)
            whole.ClearField("external_data")
            whole.data_location = TensorProto.DEFAULT
            whole.raw_data = content.tobytes()
            return numpy_helper.to_array(whole)
        return content.view(dtype.newbyteorder("<")).reshape(tuple(proto.dims))

    def beside(self, location: str, where: str) -> Path:
        """The file of a relative path below the model's folder, which no link leads out of."""
        if self.folder is None:
            raise FileFormatError(f"{where} lies in another file: load the model by its path.")
        folder = Path(os.path.realpath(self.folder))
        path = Path(os.path.realpath(folder / location))
        if not location or folder not in path.parents:
            raise FileFormatError(f"{where}: {location!r} lies outside of the model's folder.")
        if not path.is_file():
            raise FileFormatError(f"{where}: there is no file {location!r} beside the model.")
        return path


def text(content: bytes) -> str:
    """Text of a model, in which bytes that are no UTF-8 are kept as escapes."""
    return content.decode("utf-8", "backslashreplace")


def versions(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Versions of operator sets by domain, where ai.onnx is the empty name."""
    if strange := [each.version for each in imports if not 0 <= each.version < 1 << 31]:
        raise FileFormatError(f"there is no version {strange[0]} of operators.")
    return {"" if each.domain == "ai.onnx" else each.domain: each.version for each in imports}


def read(source: str | os.PathLike[str] | bytes | ModelProto) -> Model:
    """A model from its path, its bytes, or as `onnx` has loaded it.

    Raises FileFormatError for a file that is no model, or for one that contradicts itself.
    """
    if isinstance(source, ModelProto):
        return Reader("model", None).model(source)
    if isinstance(source, bytes):
        return Reader("model", None).model(parsed(source, "model"))
    path = Path(source)
    with open(path, "rb") as file:
        content = file.read()
    return Reader(path.name, path.parent).model(parsed(content, path.name))


def parsed(content: bytes, name: str) -> ModelProto:
    """The message in some bytes."""
    proto = ModelProto()
    try:
        proto.ParseFromString(content)
    except (DecodeError, RuntimeError) as error:
        raise FileFormatError(f"{name}: this is not an ONNX model: {error}.") from error
    return proto
