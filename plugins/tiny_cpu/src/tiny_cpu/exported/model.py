"""A model that `tinycore export cpu` wrote, from Python: nothing has to be installed.

    from model import Model

    model = Model()                              # the files beside this one
    outputs = model(image=pixels)                # by name: NumPy arrays, array.array, bytes, ...
    outputs["output"]                            # NumPy arrays if NumPy is there, else memoryviews

`python model.py` computes the example and compares it with what tinycore computed.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import struct
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

numpy: Any = None
with suppress(ImportError):
    import numpy

FORMATS = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i",
    "uint32": "I", "int64": "q", "uint64": "Q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip
"""Formats of `struct`; other types are raw integers of their size."""
RAW = {1: "B", 2: "H"}
BOUNDS = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}
"""Largest differences from what tinycore computed, relative to the largest number."""
TURNS: dict[int, Lock] = {}
"""The lock of each model, which a thread holds while it runs."""


class Description(ctypes.Structure):
    """`model_tensor` of model.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("bytes", ctypes.c_size_t),
    )


class Tensor:
    """The memory of an input or an output."""

    def __init__(self, found: Description, address: int) -> None:
        self.name, self.dtype = found.name.decode(), found.dtype.decode()
        self.shape = tuple(found.shape[axis] for axis in range(found.rank))
        self.bytes = found.bytes
        self.memory = (ctypes.c_char * max(found.bytes, 1)).from_address(address)
        size = found.bytes // max(math.prod(self.shape), 1)
        plain = FORMATS.get(self.dtype, "e")
        self.format: Any = (
            RAW.get(size, "B") if plain == "e" else plain
        )  # memoryviews have no halves

    def fill(self, value: Any) -> None:
        """Copy from anything that has a buffer of as many bytes; of numbers if NumPy is there."""
        if numpy is not None and self.dtype in FORMATS:
            given = numpy.asarray(value)
            if given.shape != self.shape:
                raise ValueError(f"{self.name} has shape {self.shape}, not {given.shape}")
            value = given.astype(self.dtype, order="C")
            if value.dtype.kind in "biu" and not numpy.array_equal(value, given):
                raise ValueError(f"{self.name} is {self.dtype}, which the numbers given do not fit")
        content = memoryview(value).cast("B") if self.bytes else memoryview(b"")
        if content.nbytes != self.bytes:
            raise ValueError(f"{self.name} has {self.bytes} bytes, not {content.nbytes}")
        self.memory[: self.bytes] = content.tobytes()

    def value(self) -> Any:
        """A copy: an array of NumPy if that is there, else a memoryview."""
        content = bytes(self.memory[: self.bytes])
        if numpy is not None:
            kind = self.dtype if self.dtype in FORMATS else self.format
            return numpy.frombuffer(content, dtype=kind).reshape(self.shape).copy()
        flat = memoryview(content).cast(self.format)
        return flat.cast("B").cast(self.format, self.shape) if self.shape and self.bytes else flat


class Model:
    """An exported model: call it with its inputs by name."""

    def __init__(self, folder: str | os.PathLike[str] = "", threads: int = 0) -> None:
        self._turn = TURNS[id(self)] = Lock()
        place = Path(folder or Path(__file__).parent).resolve()
        self._library = library = ctypes.CDLL(str(place / "libmodel.so"))
        library.model_open.restype = library.model_data.restype = ctypes.c_void_p
        library.model_data.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
        library.model_run.argtypes = library.model_close.argtypes = (ctypes.c_void_p,)
        reason = ctypes.c_char_p()
        weights = os.fsencode(place / "weights.safetensors")
        inherited = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:  # threads inherit the mask, so signals reach those of Python
            count = threads or len(os.sched_getaffinity(0))
            self._model = library.model_open(weights, count, ctypes.byref(reason))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, inherited)
        if not self._model:
            raise OSError(f"{place}: {(reason.value or b'').decode()}")
        self.inputs = self._tensors("input")
        self.outputs = self._tensors("output")

    def _tensors(self, what: str) -> dict[str, Tensor]:
        count = ctypes.c_int.in_dll(self._library, f"model_{what}_count").value
        found = (Description * count).in_dll(self._library, f"model_{what}s")
        data = self._library.model_data
        return {x.name.decode(): Tensor(x, data(self._model, x.name)) for x in found}

    def __call__(self, /, **inputs: Any) -> dict[str, Any]:
        """Compute the outputs, each a copy; threads take turns. Raises TypeError for other names,
        ValueError for other shapes."""
        if inputs.keys() != self.inputs.keys():
            raise TypeError(f"the model takes {', '.join(self.inputs)}, not {', '.join(inputs)}")
        with self._turn:
            for name, value in inputs.items():
                self.inputs[name].fill(value)
            self._library.model_run(self._model)
            return {name: tensor.value() for name, tensor in self.outputs.items()}

    def __del__(self) -> None:
        TURNS.pop(id(self), None)
        if getattr(self, "_model", None):
            self._library.model_close(self._model)


def _before_fork() -> None:
    """Wait until no model runs: a child would find its lock held by a thread that it has not."""
    _held.extend(TURNS.values())
    for turn in _held:
        turn.acquire()


def _after_fork() -> None:
    while _held:
        _held.pop().release()


_held: list[Lock] = []
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def example(folder: Path) -> dict[str, bytes]:
    """Inputs and outputs of the example, as bytes."""
    content = (folder / "example.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    spans = {name: facts["data_offsets"] for name, facts in header.items()}
    return {name: content[8 + length + a : 8 + length + b] for name, (a, b) in spans.items()}


def numbers(tensor: Tensor, content: bytes) -> Any:
    """The numbers in the bytes of a tensor; of the types that Python has not, their codes."""
    if tensor.dtype == "bfloat16":  # the upper halves of floats
        halves = (b"\0\0" + content[at : at + 2] for at in range(0, len(content), 2))
        return memoryview(b"".join(halves)).cast("f")
    code = FORMATS.get(tensor.dtype, tensor.format)
    return struct.unpack(f"<{len(content) // struct.calcsize(code)}{code}", content)


def difference(tensor: Tensor, got: bytes, want: bytes) -> tuple[float, float]:
    """The largest difference of two tensors, and how large it may be."""
    apart = largest = 0.0
    for a, b in zip(numbers(tensor, got), numbers(tensor, want), strict=True):
        if not (a == b or (a != a and b != b)):
            apart = max(apart, abs(a - b)) if math.isfinite(a - b) else math.inf
        largest = max(largest, abs(b)) if math.isfinite(b) else largest
    if tensor.dtype.startswith("fp8"):
        return apart, 1.0  # neighbors
    return apart, BOUNDS.get(tensor.dtype, 0.0) * largest


def main() -> int:
    """Compute the example, and say how far it is from what tinycore computed."""
    folder = Path(__file__).resolve().parent
    known, model = example(folder), Model(folder)
    for name, tensor in model.inputs.items():
        tensor.memory[: tensor.bytes] = known[f"input/{name}"]
    model._library.model_run(model._model)
    failed = False
    for name, tensor in model.outputs.items():
        got = bytes(tensor.memory[: tensor.bytes])
        apart, most = difference(tensor, got, known[f"output/{name}"])
        failed |= apart > most
        verdict = "differs" if apart > most else "ok"
        print(f"{name} {list(tensor.shape)} {tensor.dtype}: at most {apart:.3g} apart, {verdict}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
