"""The reference evaluator: the meaning of a tensor graph, computed slowly and plainly with NumPy.

The oracle: no scheduling, no fusion, one array per node. `evaluate` takes a graph to an array;
`ReferenceRuntime` lets tensors run on it, without an engine and without a device.
Floats narrower than float32 are computed in float32 and rounded to their dtype after every node.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Hashable, MutableMapping, Sequence
from typing import Any, Final

import numpy

from tiny_testing.structure import STRUCTURE
from tinycore.dtype import DType, ImageDType, dtypes, to_numpy_dtype
from tinycore.engine.engine import Engine, Refresh
from tinycore.errors import UnsupportedError
from tinycore.schedule.canonical import CanonicalGraph, canonicalize
from tinycore.schedule.kernel import memory_of
from tinycore.schedule.retention import OnResult, Realized, RetentionPolicy
from tinycore.tensor import graph
from tinycore.tensor.methods import pixels
from tinycore.tensor.runtime import HostArray
from tinycore.uop.bindings import sizes_below, with_sizes
from tinycore.uop.host_bytes import SMALL_FLOATS, decode, encode
from tinycore.uop.movement import base_of
from tinycore.uop.node import UOp, made_anew
from tinycore.uop.op import ALU, Op
from tinycore.uop.shape import DeviceLike, devices_named, names_of
from tinycore.uop.size import Size

Memory = MutableMapping[UOp, HostArray]
"""The content of every BUFFER, flat, in the bytes of `to_numpy_dtype`."""


def evaluate(root: UOp, memory: Memory) -> HostArray:
    """The value of a tensor graph as numbers.

    ASSIGN writes to `memory`, in the order of the graph.
    """
    return evaluate_all([root], memory)[0]


def evaluate_all(roots: list[UOp], memory: Memory) -> list[HostArray]:
    """Several graphs at once. Assignments run after all reads of the former content."""
    values: dict[UOp, HostArray] = {}
    writes: list[tuple[UOp, HostArray, DType]] = []
    with numpy.errstate(all="ignore"):
        for node in UOp.sink(*roots).toposort()[:-1]:
            if node.op is Op.CUSTOM:
                raise UnsupportedError("the evaluator of graphs runs no kernels (custom_kernel)")
            if node.shape_or_none is None:
                continue
            values[node] = step(node, values, memory)
            assert values[node].shape == node.shape, (
                f"{node!r}: {values[node].shape} instead of {node.shape}"
            )
            if node.op is Op.ASSIGN:
                writes.append((memory_of(node), values[node], node.dtype))
    for buffer, value, dtype in writes:
        content = encode(value, dtype).reshape(-1)
        memory.setdefault(buffer, numpy.empty_like(content))[...] = content
    return [values[root] for root in roots]


def step(node: UOp, values: dict[UOp, HostArray], memory: Memory) -> HostArray:
    """One node, given the values of its sources."""
    if node.op in LEAVES:
        return LEAVES[node.op](node, memory)
    sources = [values[s] for s in node.src if s in values]
    if node.op in ALU:
        return fitted(ARITHMETIC[node.op](node, *sources), node.dtype)
    return fitted(STRUCTURE[node.op](node, *sources), node.dtype)


def fitted(value: HostArray, dtype: DType) -> HostArray:
    """A value rounded or wrapped to what its dtype can hold; foreign floats stay float32."""
    if dtype in SMALL_FLOATS:
        return decode(encode(value, dtype), dtype)
    return numpy.asarray(value).astype(to_numpy_dtype(dtype), copy=False)


# --- sources


def buffer(node: UOp, memory: Memory) -> HostArray:
    """The content of memory; zeros where nothing was written yet."""
    if node not in memory:
        memory[node] = numpy.zeros(node.shape[0], to_numpy_dtype(node.dtype))
    return decode(memory[node].copy(), node.dtype)  # what is there now may be overwritten


def constant(node: UOp, memory: Memory) -> HostArray:
    """A number of shape ()."""
    return fitted(numpy.array(node.arg), node.dtype)


def counted(node: UOp, memory: Memory) -> HostArray:
    """0, 1, 2 ..."""
    return fitted(numpy.arange(node.arg), node.dtype)


def part(node: UOp, memory: Memory) -> HostArray:
    """Some elements of a buffer."""
    size, offset = node.arg
    return decode(memory[node.src[0]][offset : offset + size].copy(), node.dtype)


LEAVES: Final[dict[Op, Callable[[UOp, Memory], HostArray]]] = {
    Op.BUFFER: buffer,
    Op.CONST: constant,
    Op.ARANGE: counted,
    Op.BUFFER_VIEW: part,
    Op.BIND: constant,
}

# --- arithmetic


def cast(node: UOp, x: HostArray) -> HostArray:
    """Values converted; a float truncates into an integer."""
    if node.dtype is dtypes.bool:
        return numpy.asarray(x != 0)
    if dtypes.is_int(node.dtype) and x.dtype.kind == "f":
        return whole(numpy.trunc(x.astype(numpy.float64)), node.dtype)
    if node.dtype is dtypes.float16 and x.dtype == numpy.float64:
        return x.astype(numpy.float32)  # rounded twice, as docs/numerics.md says
    return x


def whole(x: HostArray, dtype: DType) -> HostArray:
    """Floats without a fraction as integers, of 64 bits; what does not fit becomes the least.

    That is the least int32 for types up to int32, the least int64 for uint32 and wider ones.
    """
    bits = 63 if dtype is dtypes.uint32 or dtype.itemsize > 4 else 31
    least, end = -(2.0**bits), 2.0 ** (bits + (dtype is dtypes.uint64))
    fitting = numpy.where((least <= x) & (x < end), x, least)
    beyond = fitting >= 2.0**63  # of uint64: no int64, though it fits
    near = numpy.where(beyond, fitting - 2.0**63, fitting).astype(numpy.int64)
    return near.astype(numpy.uint64) + (beyond.astype(numpy.uint64) << numpy.uint64(63))


def modulo_width(b: HostArray) -> HostArray:
    """The amount of a shift, modulo the width of the shifted type."""
    return numpy.asarray(b & b.dtype.type(8 * b.dtype.itemsize - 1))


def bitcast(node: UOp, x: HostArray) -> HostArray:
    """The same bytes."""
    stored = encode(x, node.src[0].dtype).view(to_numpy_dtype(node.dtype))
    return decode(stored, node.dtype)


def truncated_quotient(a: HostArray, b: HostArray) -> HostArray:
    """a / b toward zero; 0 where b is 0."""
    floor = numpy.floor_divide(a, numpy.where(b == 0, 1, b))
    inexact = floor * b != a
    return numpy.where(b == 0, 0, floor + (inexact & ((a < 0) != (b < 0)))).astype(a.dtype)


def threefry(counter: HostArray, key: HostArray) -> HostArray:
    """Threefry-2x32 with 20 rounds.

    By Salmon and others (SC 2011): both 64-bit numbers as two words, low first.
    """
    low, mask = numpy.uint64(0xFFFFFFFF), numpy.uint64(32)
    x0, x1 = (counter & low).astype(numpy.uint32), (counter >> mask).astype(numpy.uint32)
    k0, k1 = (key & low).astype(numpy.uint32), (key >> mask).astype(numpy.uint32)
    keys = [k0, k1, k0 ^ k1 ^ numpy.uint32(0x1BD11BDA)]
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for block in range(5):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[block % 2]:
            x0 = x0 + x1
            x1 = ((x1 << numpy.uint32(rotation)) | (x1 >> numpy.uint32(32 - rotation))) ^ x0
        x0 = x0 + keys[(block + 1) % 3]
        x1 = x1 + keys[(block + 2) % 3] + numpy.uint32(block + 1)
    return x0.astype(numpy.uint64) | (x1.astype(numpy.uint64) << mask)


def safe(b: HostArray) -> HostArray:
    """A divisor without zeros."""
    return numpy.where(b == 0, 1, b)


def unless_zero(value: HostArray, b: HostArray) -> HostArray:
    """A quotient or remainder; 0 where the divisor `b` is 0."""
    return numpy.where(b == 0, 0, value).astype(b.dtype)


def negated(x: HostArray) -> HostArray:
    """-x, wrapping."""
    return numpy.subtract(numpy.zeros_like(x), x) if x.dtype.kind != "f" else -x


ARITHMETIC: Final[dict[Op, Callable[..., Any]]] = {
    Op.CAST: cast,
    Op.BITCAST: bitcast,
    Op.NEG: lambda n, a: negated(a),
    Op.RECIPROCAL: lambda n, a: 1 / a,
    Op.SQRT: lambda n, a: numpy.sqrt(a),
    Op.EXP2: lambda n, a: numpy.exp2(a),
    Op.LOG2: lambda n, a: numpy.log2(a),
    Op.EXP: lambda n, a: numpy.exp(a),
    Op.LOG: lambda n, a: numpy.log(a),
    Op.SIN: lambda n, a: numpy.sin(a),
    Op.TRUNC: lambda n, a: numpy.trunc(a),
    Op.ADD: lambda n, a, b: a + b,
    Op.SUB: lambda n, a, b: a - b,
    Op.MUL: lambda n, a, b: a * b,
    Op.FDIV: lambda n, a, b: a / b,
    Op.IDIV: lambda n, a, b: truncated_quotient(a, b),
    Op.MOD: lambda n, a, b: unless_zero(a - b * truncated_quotient(a, b), b),
    Op.FLOORDIV: lambda n, a, b: unless_zero(numpy.floor_divide(a, safe(b)), b),
    Op.FLOORMOD: lambda n, a, b: unless_zero(numpy.mod(a, safe(b)), b),
    Op.MAX: lambda n, a, b: numpy.maximum(a, b),
    Op.MIN: lambda n, a, b: numpy.minimum(a, b),
    Op.CMPLT: lambda n, a, b: a < b,
    Op.CMPNE: lambda n, a, b: a != b,
    Op.CMPEQ: lambda n, a, b: a == b,
    Op.AND: lambda n, a, b: a & b,
    Op.OR: lambda n, a, b: a | b,
    Op.XOR: lambda n, a, b: a ^ b,
    Op.SHL: lambda n, a, b: a << modulo_width(b),
    Op.SHR: lambda n, a, b: a >> modulo_width(b),
    Op.THREEFRY: lambda n, a, b: threefry(a, b),
    Op.WHERE: lambda n, c, a, b: numpy.where(c, a, b),
    Op.MULACC: lambda n, a, b, c: a * b + c,
}


class ReferenceRuntime(Engine):
    """A runtime on which nothing is compiled; install it with `tinycore.tensor.runtime.use`."""

    def __init__(self, device: str = "REFERENCE") -> None:
        self.device = device
        self.memory: weakref.WeakKeyDictionary[UOp, HostArray] = weakref.WeakKeyDictionary()

    def default_device(self) -> str:
        """The one device, unless others are named."""
        return self.device

    def canonicalize(self, device: DeviceLike) -> DeviceLike:
        """Any name in capitals is a device."""
        names = [name.upper().removesuffix(":0") for name in names_of(device)]
        return devices_named(names)

    def repeat(self, action: Callable[[], None], fingerprint: Hashable) -> None:
        """Nothing: no step is captured here."""

    def from_host(
        self, array: HostArray, dtype: DType, device: DeviceLike, refresh: Refresh | None = None
    ) -> UOp:
        """A BUFFER that holds a copy."""
        node = graph.new_buffer((array.size,), dtype, device)
        self.memory[node] = array.reshape(-1).copy()
        return node

    def to_host(self, buffer: UOp) -> HostArray:
        """A copy of what a BUFFER holds."""
        if buffer not in self.memory:
            self.memory[buffer] = numpy.zeros(math.prod(buffer.shape), to_numpy_dtype(buffer.dtype))
        return self.memory[buffer].copy()

    def shared(self, buffer: UOp) -> HostArray:
        """The content of a BUFFER itself."""
        self.to_host(buffer)
        return self.memory[buffer]

    def wrap(
        self, pointer: int, size: int, dtype: DType, device: str, owner: object, start: int = 0
    ) -> UOp:
        """A BUFFER over memory of this process."""
        if isinstance(dtype, ImageDType):
            node, dtype = pixels.new_image((size,), dtype, device), dtype.base
        else:
            node = graph.new_buffer((size,), dtype, device)
        block = (ctypes.c_uint8 * (size * dtype.itemsize)).from_address(pointer + start)
        vars(block)["owner"] = owner
        self.memory[node] = numpy.frombuffer(memoryview(block), to_numpy_dtype(dtype))
        return node

    def version(self, buffer: UOp) -> UOp:
        """A new BUFFER over the memory of another one."""
        self.shared(buffer)
        found = made_anew(buffer)
        self.memory[found] = self.memory[buffer]
        return found

    def exchange_kind(self, device: DeviceLike) -> tuple[int, int]:
        """Memory of the host."""
        return 1, 0

    def takes(self, device: DeviceLike, kind: int, number: int) -> bool:
        """True if a device works on memory of a DLDevice."""
        return (kind, number) == self.exchange_kind(device)

    def device_for(self, kind: int, number: int) -> str | None:
        """The one device, for memory of the host."""
        return self.device if kind == 1 else None

    def exchange(self, device: DeviceLike) -> None:
        """There are no streams."""

    def lend(self, buffer: UOp) -> tuple[HostArray, int]:
        """Array of a BUFFER, not a copy."""
        flat = self.shared(buffer)
        return flat, flat.ctypes.data

    def realize(
        self,
        canonical: CanonicalGraph,
        policy: RetentionPolicy,
        others: Sequence[UOp] = (),
        on_result: OnResult | None = None,
    ) -> Realized:
        """Evaluate the roots, and report their replacements."""
        computed = self.evaluated(canonical, policy)
        if on_result is not None:
            on_result(computed)
        return computed

    def finish(self) -> None:
        """Nothing is ever left half done that tests look at."""

    def evaluated(self, canonical: CanonicalGraph, policy: RetentionPolicy) -> Realized:
        """Evaluate the roots, and put results that are not in memory into new buffers.

        Sizes are the numbers that they have now: the shapes of results are fixed.
        """
        roots = canonical.roots
        if sizes_below(roots):
            numbers = with_sizes(roots, Size.known)
            fixed = self.evaluated(canonicalize([numbers[root] for root in roots]), policy)
            given = {o: fixed.replaced[new] for o, new in numbers.items() if new in fixed.replaced}
            return Realized(given, {})
        below = [n for n in UOp.sink(*roots).toposort() if n.op in (Op.ASSIGN, Op.CONTIGUOUS)]
        wanted = list(
            dict.fromkeys([*below, *[r for r in roots if base_of(r).op is not Op.BUFFER]])
        )
        found: dict[UOp, UOp] = {}
        for node, value in zip(wanted, evaluate_all(wanted, self.memory), strict=True):
            if base_of(node).op is Op.ASSIGN:
                target = memory_of(node)
            else:
                target = graph.new_buffer((value.size,), node.dtype, node.device)
                self.memory[target] = encode(value, node.dtype).reshape(-1)
            found[node] = graph.reshape(target, node.shape)
        return Realized(policy(roots, found).replaced, {})

    def kernelize(self, roots: list[UOp], policy: RetentionPolicy) -> dict[UOp, UOp]:
        """There are no kernels here."""
        return {}

    def schedule(self, canonical: CanonicalGraph) -> list[Any]:
        """There are no kernels here."""
        return []

    def describe(self, buffer: UOp) -> str:
        """The size and dtype."""
        return f"<buffer of {buffer.arg} {buffer.dtype.name}>"
