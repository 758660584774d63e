"""Bindings of Metal and of the runtime of Objective-C, through cffi: opened once, every message by
its type.

`system()` is all that the plugin knows of macOS: `System` has the functions of `_cdef.py`. `use`
puts another object with the same functions in its place: a mock, in tests. What `objc_msgSend` is
sent is listed in `_messages.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from tiny_metal._messages import MESSAGES, prototype
from tiny_metal._native import ffi
from tinycore.errors import DeviceUnavailable

__all__ = ["Metal", "Object", "Pool", "System", "ffi", "metal", "text_of", "use"]

Object = Any
"""A cffi pointer to an object: an MTLDevice, an NSString, ..."""

NIL: Final = ffi.NULL
_OBJC: Final = "/usr/lib/libobjc.A.dylib"
_FRAMEWORKS: Final = "/System/Library/Frameworks/{0}.framework/{0}"
_NEEDED: Final = ("Foundation", "CoreGraphics")
"""Frameworks to load: NSString, and without CoreGraphics a program in a terminal is given no
default device."""


class System(Protocol):
    """The functions of macOS that are called; `ffi.dlopen` gives objects that have them."""

    objc_msgSend: Any  # noqa: N815  Apple's name

    def objc_getClass(self, name: bytes) -> Object:  # noqa: N802
        """The class of a name; nil where there is none."""

    def sel_registerName(self, name: bytes) -> Object:  # noqa: N802
        """The selector of a name."""

    def objc_autoreleasePoolPush(self) -> Object:  # noqa: N802
        """Open an autorelease pool in this thread."""

    def objc_autoreleasePoolPop(self, pool: Object) -> None:  # noqa: N802
        """Release the objects of an autorelease pool."""

    def MTLCreateSystemDefaultDevice(self) -> Object:  # noqa: N802
        """The default GPU, to be released; nil where there is none."""

    def MTLCopyAllDevices(self) -> Object:  # noqa: N802
        """An NSArray of GPUs, to be released."""


class MacOs:
    """macOS itself: the functions of several libraries as one."""

    def __init__(self) -> None:
        for name in _NEEDED:
            ffi.dlopen(_FRAMEWORKS.format(name))
        self._metal = ffi.dlopen(_FRAMEWORKS.format("Metal"))
        self._objc = ffi.dlopen(_OBJC)

    def __getattr__(self, name: str) -> Any:
        if name == "objc_msgSend":
            found: Any = ffi.addressof(self._objc, name)
        else:
            found = getattr(self._metal if name.startswith("MTL") else self._objc, name)
        setattr(self, name, found)
        return found


class Metal:
    """The messages of one system, ready to be sent."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.selectors = {name: system.sel_registerName(name.encode()) for name in MESSAGES}
        self.functions = {name: ffi.cast(prototype(name), system.objc_msgSend) for name in MESSAGES}

    def send(self, receiver: Object, selector: str, *arguments: Any) -> Any:
        """Send a message, and return what its method returns."""
        return self.functions[selector](receiver, self.selectors[selector], *arguments)

    def new(self, name: str) -> Object:
        """A new object of a class, to be released. Raises DeviceUnavailable without the class."""
        kind = self.system.objc_getClass(name.encode())
        if kind == NIL:
            raise DeviceUnavailable(f"this system has no class {name}: Metal 2.2 is needed")
        return self.send(self.send(kind, "alloc"), "init")

    def string(self, text: str) -> Object:
        """An NSString, released by the pool around."""
        kind = self.system.objc_getClass(b"NSString")
        return self.send(kind, "stringWithUTF8String:", text.encode())

    def responds(self, receiver: Object, selector: str) -> bool:
        """True if an object responds to a selector."""
        return bool(self.send(receiver, "respondsToSelector:", self.selectors[selector]))


class Pool:
    """Releases what is autoreleased inside, when it is left; of one thread."""

    __slots__ = ("_pool", "_system")

    def __init__(self, metal: Metal) -> None:
        self._system = metal.system

    def __enter__(self) -> None:
        self._pool = self._system.objc_autoreleasePoolPush()

    def __exit__(self, *_: object) -> None:
        self._system.objc_autoreleasePoolPop(self._pool)


_opened: list[Metal] = []
"""The system, once it is open."""


def metal() -> Metal:
    """The messages of the system. Raises DeviceUnavailable off macOS."""
    return _opened[-1] if _opened else _open()


def _open() -> Metal:
    name = str(sys.platform)
    if name != "darwin":
        raise DeviceUnavailable(
            f"Metal is a part of macOS, and this is {name}. DEV=NULL:MSL writes kernels and runs "
            "nothing"
        )
    try:
        _opened.append(Metal(MacOs()))
    except OSError as error:
        raise DeviceUnavailable(
            f"Metal cannot be loaded: {error}. macOS 10.15 or later has it"
        ) from error
    return _opened[-1]


@contextmanager
def use(system: System) -> Iterator[None]:
    """Have an object with the system's functions in place of the system."""
    mine = Metal(system)
    _opened.append(mine)
    try:
        yield
    finally:
        _opened.remove(mine)


def text_of(metal: Metal, string: Object) -> str:
    """An NSString as text; nil is empty."""
    if string == NIL:
        return ""
    return bytes(ffi.string(metal.send(string, "UTF8String"))).decode("utf-8", "replace")
