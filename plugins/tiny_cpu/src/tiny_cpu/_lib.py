"""The C library of this process, through cffi: typed calls, each with one check.

Nothing else in the plugin touches cffi objects of unknown type.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from tiny_cpu._native import ffi
from tinycore.errors import DeviceError, OutOfMemory

__all__ = [
    "Pointer",
    "address_of",
    "aligned_memory",
    "as_function",
    "as_pointer",
    "find_symbol",
    "free_memory",
    "keep_forever",
    "lookup",
    "make_executable",
    "mapped_memory",
    "view",
]

Pointer = Any
"""A cffi pointer: `address_of` gives its number."""

_HUGE_PAGE_BYTES: Final = 2 << 20
_IS_DARWIN: Final = sys.platform == "darwin"
_MAP_ANONYMOUS: Final = 0x1000 if _IS_DARWIN else 0x20
_MAP_PRIVATE: Final = 0x2
_READ, _WRITE, _EXECUTE = 1, 2, 4
_MADV_HUGEPAGE: Final = 14
_MOST_BYTES: Final = 1 << 47  # what a process can address
_RTLD_NOW: Final = 2
_RTLD_DEFAULT: Final = -2 if _IS_DARWIN else 0

_libc: Final = ffi.dlopen(None)


def address_of(pointer: Pointer) -> int:
    """The number of a pointer."""
    return int(ffi.cast("uintptr_t", pointer))


def as_pointer(address: int) -> Pointer:
    """An untyped pointer to `address`."""
    return ffi.cast("void *", address)


def as_function(kind: str, address: int) -> Callable[..., Any]:
    """The function of C type `kind` at `address`; a call releases the GIL."""
    function: Callable[..., Any] = ffi.cast(kind, address)
    return function


def view(pointer: Pointer, size: int) -> memoryview:
    """The bytes at `pointer`, writable; the view keeps `pointer`, and so what it owns, alive."""
    return memoryview(ffi.buffer(pointer, size))


def aligned_memory(size: int, alignment: int) -> Pointer:
    """`size` bytes from the heap, freed with the last reference. Raises OutOfMemory."""
    result = ffi.new("void **")
    status = _libc.posix_memalign(result, alignment, size)
    if status == errno.ENOMEM:
        raise _exhausted(size)
    if status:
        raise DeviceError(f"posix_memalign({alignment}, {size}) failed: {os.strerror(status)}")
    return ffi.gc(result[0], _libc.free, size)


def mapped_memory(size: int) -> Pointer:
    """`size` zero bytes of their own pages, given back with the last reference. Raises OutOfMemory.

    Large ones start at a huge page and ask for huge pages: fewer faults, and fewer misses of the
    TLB.
    """
    if size > _MOST_BYTES:
        raise _exhausted(size)
    slack = _HUGE_PAGE_BYTES if size >= 2 * _HUGE_PAGE_BYTES else 0
    start = _libc.mmap(ffi.NULL, size + slack, _READ | _WRITE, _MAP_PRIVATE | _MAP_ANONYMOUS, -1, 0)
    base = address_of(start)
    if start == ffi.cast("void *", -1):
        if ffi.errno == errno.ENOMEM:
            raise _exhausted(size)
        raise DeviceError(f"mmap of {size} bytes failed: {os.strerror(ffi.errno)}")
    aligned = base + (-base % _HUGE_PAGE_BYTES if slack else 0)
    if slack and not _IS_DARWIN:  # advice only: that it fails does no harm
        _libc.madvise(as_pointer(aligned), size, _MADV_HUGEPAGE)
    unmap = _libc.munmap  # bound here: the module may be gone when the interpreter ends
    return ffi.gc(as_pointer(aligned), lambda _: unmap(start, size + slack), size)


def keep_forever(pointer: Pointer) -> None:
    """Keep the memory of a pointer until the process ends."""
    ffi.gc(pointer, None)


def free_memory(pointer: Pointer) -> None:
    """Give back what `aligned_memory` made and `keep_forever` kept."""
    _libc.free(pointer)


def _exhausted(size: int) -> OutOfMemory:
    return OutOfMemory(
        f"this machine has no {size:,} bytes of memory left to give. "
        "Free tensors, or use a smaller batch."
    )


# Machine code


def make_executable(pointer: Pointer, size: int) -> None:
    """Turn written pages into code: readable and executable, no longer writable."""
    address = address_of(pointer)
    _protect(address, size, _READ | _EXECUTE)
    flush_instructions(address, size)


def _protect(address: int, size: int, protection: int) -> None:
    if _libc.mprotect(as_pointer(address), size, protection):
        reason = os.strerror(ffi.errno)
        raise DeviceError(
            f"this system does not let a program make code (mprotect: {reason}). A security "
            "policy, such as SELinux's execmem, forbids it; allow it, or compute with DEV=PYTHON."
        )


def flush_instructions(address: int, size: int) -> None:
    """Make the processor forget old instructions at these addresses; x86 does so by itself."""
    if os.uname().machine in {"x86_64", "amd64"}:
        return
    if _IS_DARWIN:
        as_function("invalidate_cache", find_symbol("sys_icache_invalidate"))(address, size)
        return
    clear = lookup("__clear_cache")  # where no library has it, Linux itself sees to fresh pages
    if clear:
        as_function("clear_cache", clear)(address, address + size)


# Symbols


def find_symbol(name: str) -> int:
    """The address of a function of the C library or its companions. Raises DeviceError."""
    address = lookup(name)
    if not address:
        raise DeviceError(
            f"a kernel calls {name}, which no library of this process has. This is a fault of the "
            "renderer: please report it with the kernel's source (DEBUG=4)."
        )
    return address


@cache
def lookup(name: str) -> int:
    """The address of a symbol in this process, libm and the compiler's run time; 0 when absent."""
    for library in (as_pointer(_RTLD_DEFAULT), *_companions()):
        found = _libc.dlsym(library, name.encode())
        if found != ffi.NULL:
            return address_of(found)
    return 0


@cache
def _companions() -> tuple[Pointer, ...]:
    """Libraries that need not be loaded yet: mathematics, and what compilers call for halves.

    Where one is missing, it is part of the C library (musl), or nothing needs it.
    """
    names = () if _IS_DARWIN else (b"libm.so.6", b"libgcc_s.so.1")
    opened = [_libc.dlopen(name, _RTLD_NOW) for name in names]
    return tuple(library for library in opened if library != ffi.NULL)
