"""The functions of NCCL 2, which RCCL has as well: NCCL's documentation, "NCCL API"."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_void_p
from typing import Any, Final

from tinycore.errors import GroupError

__all__ = ["BYTE_TYPE", "DATA_TYPES", "FOLD_NUMBERS", "ID_BYTES", "Library"]

ID_BYTES: Final = 128
DATA_TYPES: Final = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float32": 7,
    "float64": 8,
}
"""Values of ncclDataType_t by dtype."""
BYTE_TYPE: Final = DATA_TYPES["uint8"]
FOLD_NUMBERS: Final = {"sum": 0, "prod": 1, "max": 2, "min": 3}
"""Values of ncclRedOp_t."""
IN_PROGRESS: Final = 7
OLDEST: Final = 2_700
"""NCCL 2.7: the first with ncclSend and ncclRecv. Those from 2.9 on have 20,900 and more."""


class Id(ctypes.Structure):
    """The name of a communicator, ncclUniqueId, which is passed by value."""

    _fields_ = (("internal", c_char * ID_BYTES),)


SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "ncclGetVersion": (POINTER(c_int),),
    "ncclGetUniqueId": (POINTER(Id),),
    "ncclCommInitRank": (POINTER(c_void_p), c_int, Id, c_int),
    "ncclCommAbort": (c_void_p,),
    "ncclCommGetAsyncError": (c_void_p, POINTER(c_int)),
    "ncclAllReduce": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclReduceScatter": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclAllGather": (c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p),
    "ncclBroadcast": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclSend": (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclRecv": (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}
"""Types of arguments; all return an ncclResult_t."""


class Library:
    """An opened library. Raises GroupError for one that is missing, or too old."""

    def __init__(self, path: str) -> None:
        try:
            self.functions: Any = ctypes.CDLL(path)
            for name, types in SIGNATURES.items():
                getattr(self.functions, name).argtypes = types
            self.functions.ncclGetErrorString.argtypes = (c_int,)
            self.functions.ncclGetErrorString.restype = c_char_p
        except (OSError, AttributeError) as error:
            raise GroupError(f"{path} is no library of collectives: {error}") from error
        version = c_int()
        self.call("ncclGetVersion", byref(version))
        if version.value < OLDEST:
            raise GroupError(f"{path} is NCCL of version {version.value}; 2.7 or later is needed")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises GroupError with what the library says."""
        self.verify(getattr(self.functions, name)(*arguments), name)

    def verify(self, status: int, name: str) -> None:
        """Raise GroupError for what is no success."""
        if status:
            told = (self.functions.ncclGetErrorString(status) or b"?").decode("utf-8", "replace")
            raise GroupError(f"{name} returned {told} ({status}); NCCL_DEBUG=WARN says more")

    def new_id(self) -> bytes:
        """The name of a communicator to be: one process makes it, and tells the others."""
        made = Id()
        self.call("ncclGetUniqueId", byref(made))
        return bytes(made)

    def join(self, size: int, id_bytes: bytes, rank: int) -> c_void_p:
        """The communicator of a name, once all processes join; on the thread's current card."""
        comm = c_void_p()
        self.call("ncclCommInitRank", byref(comm), size, Id.from_buffer_copy(id_bytes), rank)
        return comm

    def exchange(
        self, source: int, target: int, size: int, count: int, comm: c_void_p, stream: int
    ) -> None:
        """Send row k, of so many bytes, to rank k, and receive the row of each, all at once."""
        self.call("ncclGroupStart")
        try:
            for rank in range(count):
                self.transfer("ncclSend", source + rank * size, size, rank, comm, stream)
                self.transfer("ncclRecv", target + rank * size, size, rank, comm, stream)
        finally:
            self.call("ncclGroupEnd")

    def transfer(
        self, name: str, address: int, size: int, peer: int, comm: c_void_p, stream: int
    ) -> None:
        """Ask a stream to send bytes to a rank, or to receive them."""
        self.call(name, address, size, BYTE_TYPE, peer, comm, stream)

    def check(self, comm: c_void_p) -> None:
        """Raise GroupError for what went wrong on the way."""
        status = c_int()
        self.call("ncclCommGetAsyncError", comm, byref(status))
        if status.value != IN_PROGRESS:
            self.verify(status.value, "a collective")

    def abort(self, comm: c_void_p) -> None:
        """End a communicator with all that it is asked, whatever it says; its memory is gone."""
        if comm.value:
            self.functions.ncclCommAbort(comm)
            comm.value = None
