"""Helpers of tests of DLPack: memory by address, and another library that lends its own."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy
import pytest

from tinycore.device.buffer import Buffer
from tinycore.device.registry import Device
from tinycore.dtype import DType, dtypes
from tinycore.schedule.device_memory import buffer_of
from tinycore.tensor import Tensor
from tinycore.tensor.interop.dlpack import CAPSULE_TYPES, DataType, Deleter, Described
from tinycore.uop.op import Op

new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))


def buffer(tensor: Tensor) -> Buffer:
    """The memory of a realized tensor."""
    return buffer_of(next(n for n in tensor.uop.toposort() if n.op is Op.BUFFER))


def need_host_lender(target: str) -> None:
    """Skip on a device whose DLPack memory is not the host's: NumPy's is none of it."""
    device = target.partition(":")[0]
    if target != "reference" and HOST not in Device.backend(device).dlpack_kinds:
        pytest.skip(f"{device} lends no memory of the host")


def need(target: str, capability: str) -> None:
    """Skip on a device that does not claim a capability; the evaluator's memory is the host's."""
    device = target.partition(":")[0]
    if target != "reference" and capability not in Device.backend(device).capabilities:
        pytest.skip(f"{device} does not claim {capability}")


def realized(values: Any, dtype: DType = dtypes.float32) -> Tensor:
    return Tensor(values, dtype=dtype).realize()


HOST: Final = 1
"""DLDeviceType of the host."""

KEPT: Final[list[object]] = []
"""Producers that have lent: whoever took memory calls its deleter when it likes, and calls freed
code where that is gone."""


class Producer:
    """Another library: one capsule over a NumPy array, described as the test wants."""

    def __init__(self, array: Any, name: bytes = b"dltensor_versioned", **facts: Any) -> None:
        self.array, self.name, self.facts = array, name, facts
        self.deleted = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.facts.get("device", (1, 0))  # type: ignore[no-any-return]

    def __dlpack__(self, **asked: Any) -> object:
        if self.name == b"dltensor" and asked:
            raise TypeError("this library is from before DLPack 1.0")
        self.managed = CAPSULE_TYPES[self.name]()
        self.shape = (ctypes.c_int64 * 8)(*self.array.shape)
        steps = [n // self.array.itemsize for n in self.array.strides]
        self.strides = (ctypes.c_int64 * 8)(*steps)
        offset = self.facts.get("byte_offset", 0)
        tensor: Described = self.managed.tensor
        tensor.data = self.array.ctypes.data - offset
        tensor.byte_offset = offset
        tensor.device_type, tensor.device_id = self.__dlpack_device__()
        tensor.ndim = self.array.ndim
        tensor.dtype = DataType(*self.facts.get("dtype", (2, 32, 1)))
        tensor.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        if not self.facts.get("no_strides"):
            tensor.strides = ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))
        if self.name == b"dltensor_versioned":
            self.managed.version.major = self.facts.get("major", 1)
            self.managed.flags = self.facts.get("flags", 0)
        if tamper := self.facts.get("tamper"):
            tamper(tensor)
        self.deleter = Deleter(self.note)
        self.managed.deleter = self.deleter
        KEPT.append(self)
        return new_capsule(ctypes.addressof(self.managed), self.name, None)

    def note(self, address: int) -> None:
        assert address == ctypes.addressof(self.managed)
        self.deleted += 1


def floats(*shape: int) -> Any:
    count = int(numpy.prod(shape))
    return numpy.arange(count, dtype=numpy.float32).reshape(shape)
