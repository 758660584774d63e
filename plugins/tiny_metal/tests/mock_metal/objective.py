"""Classes of Objective-C whose methods are Python's, on GNU's runtime.

A Python class states each method's selector and C types by `method`. Its class in the runtime is
made when it is first needed; an instance is an object of that class, and a number of references.
Memory of an object is never used again, so that a message to one that was freed is known.
"""

from __future__ import annotations

import ctypes.util
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Final, TypeVar

from cffi import FFI
from shader.compiler import FLAGS, folder, target, toolchain

__all__ = ["Misuse", "Mocked", "World", "ffi", "method", "world_reason"]

Function = TypeVar("Function", bound=Callable[..., Any])

ffi: Final = FFI()
ffi.cdef("""
    typedef void *id; typedef void *SEL; typedef void *Class;
    typedef unsigned char BOOL; typedef long NSInteger; typedef unsigned long NSUInteger;
    typedef struct { NSUInteger width, height, depth; } MTLSize;
    typedef struct { NSUInteger location, length; } NSRange;
    Class objc_allocateClassPair(Class parent, const char *name, size_t extra);
    void objc_registerClassPair(Class made);
    Class objc_getClass(const char *name);
    Class objc_getMetaClass(const char *name);
    BOOL class_addMethod(Class where, SEL name, void *function, const char *types);
    BOOL class_respondsToSelector(Class where, SEL name);
    id class_createInstance(Class kind, size_t extra);
    SEL sel_registerName(const char *name);
    const char *sel_getName(SEL name);
    void *objc_msg_lookup(id receiver, SEL name);
    extern void *(*__objc_msg_forward2)(id receiver, SEL name);
    extern void *(*mock_lookup)(id receiver, SEL name);
    void mock_send(void);
""")


class Misuse(Exception):
    """A misuse for which Metal's validation would stop a program."""


def world_reason() -> str:
    """Why there can be no mock here; empty when there can."""
    try:
        toolchain()
        libobjc()
    except (LookupError, OSError) as error:
        return str(error)
    return ""


@cache
def libobjc() -> Any:
    """GNU's runtime. Raises LookupError, saying how to get it."""
    for name in ("libobjc.so.4", ctypes.util.find_library("objc") or "libobjc.so"):
        try:
            return ffi.dlopen(name)
        except OSError:
            continue
    raise LookupError("the mock of Metal needs GNU's Objective-C runtime: `apt install libobjc4`")


@cache
def trampoline() -> Any:
    """`objc_msgSend` of ours, compiled."""
    from shader.compiler import HERE, run  # noqa: PLC0415

    clang, linker = toolchain()
    source = HERE.parent / "mock_metal/trampoline.c"
    code, library = folder() / "trampoline.o", folder() / "trampoline.so"
    flags = [flag for flag in FLAGS if flag != "-fno-rtti"]
    run([*clang, *target(), "-x", "c", *flags, "-c", str(source), "-o", str(code)])
    subprocess.run([*linker, "-shared", str(code), "-o", str(library)], check=True)
    opened = ffi.dlopen(str(library))
    opened.mock_lookup = ffi.addressof(libobjc(), "objc_msg_lookup")
    return opened


def method(
    selector: str, returned: str = "void", *taken: str, on_class: bool = False
) -> Callable[[Function], Function]:
    """Answer a message by a function, which is called with what the C types say."""

    def mark(function: Function) -> Function:
        function.message = (selector, (returned, *taken), on_class)  # type: ignore[attr-defined]
        return function

    return mark


class World:
    """All that a mocked process has: objects, pools, and what was done wrong."""

    current: ClassVar[World | None] = None

    def __init__(self) -> None:
        self.alive: dict[int, Mocked] = {}
        self.dead: dict[int, str] = {}
        self.misuses: list[str] = []
        self.sent: Counter[str] = Counter()
        self.lock = threading.RLock()
        self._pools = threading.local()
        World.current = self

    def complain(self, text: str) -> None:
        """Note a misuse."""
        with self.lock:
            self.misuses.append(text)

    def pools(self) -> list[list[Mocked]]:
        """The pools of this thread, the innermost last."""
        if not hasattr(self._pools, "stack"):
            self._pools.stack = []
        found: list[list[Mocked]] = self._pools.stack
        return found

    def push(self) -> Any:
        """Begin a pool."""
        self.pools().append([])
        return ffi.cast("void *", len(self.pools()))

    def pop(self, pool: Any) -> None:
        """End a pool and those inside, which must be of this thread."""
        depth, pools = int(ffi.cast("uintptr_t", pool)), self.pools()
        if not 0 < depth <= len(pools):
            self.complain(f"a pool is popped that this thread has not pushed ({depth})")
            return
        while len(pools) >= depth:
            for item in pools.pop():
                item.release()

    def left(self) -> Counter[str]:
        """Number of living objects of each class."""
        with self.lock:
            return Counter(type(item).__name__ for item in self.alive.values())


def world() -> World:
    """The mocked process of now."""
    assert World.current is not None
    return World.current


class Mocked:
    """An object that Objective-C knows, with a number of references."""

    class_name: ClassVar[str] = ""
    _made: ClassVar[dict[type[Mocked], Any]] = {}
    _kept: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.world = world()
        self.references = 1
        self.pointer = libobjc().class_createInstance(class_of(type(self)), 0)
        self.address = int(ffi.cast("uintptr_t", self.pointer))
        with self.world.lock:
            self.world.dead.pop(self.address, None)
            self.world.alive[self.address] = self

    def ended(self) -> None:
        """Give back what the object has; it is being freed."""

    @method("retain", "id")
    def retain(self) -> Mocked:
        """One more reference."""
        with self.world.lock:
            self.references += 1
        return self

    @method("release")
    def release(self) -> None:
        """One reference less; without any the object is freed."""
        with self.world.lock:
            self.references -= 1
            if self.references:
                return
            self.world.alive.pop(self.address, None)
            self.world.dead[self.address] = type(self).__name__
        self.ended()

    @method("autorelease", "id")
    def autorelease(self) -> Mocked:
        """One reference less when the pool of this thread ends."""
        pools = self.world.pools()
        if pools:
            pools[-1].append(self)
        else:
            self.world.complain(f"{type(self).__name__} is autoreleased without a pool: it leaks")
        return self

    @method("respondsToSelector:", "BOOL", "SEL")
    def responds_to_selector(self, selector: Any) -> bool:
        """True if there is a method for a selector."""
        return bool(libobjc().class_respondsToSelector(class_of(type(self)), selector))

    @method("alloc", "id", on_class=True)
    @classmethod
    def alloc(cls) -> Mocked:
        """A new object."""
        return cls()

    @method("init", "id")
    def init(self) -> Mocked:
        """The object itself."""
        return self


def class_of(kind: type[Mocked]) -> Any:
    """The runtime's class of a Python class."""
    with _MAKING:
        if kind not in Mocked._made:
            Mocked._made[kind] = make_class(kind)
        return Mocked._made[kind]


_MAKING: Final = threading.RLock()


def make_class(kind: type[Mocked]) -> Any:
    """Make and register a class with all methods of a Python class and its parents."""
    objc, name = libobjc(), (kind.class_name or f"Mock{kind.__name__}").encode()
    made = objc.objc_allocateClassPair(ffi.NULL, name, 64)
    assert made != ffi.NULL, f"class {name!r} exists"
    found: dict[str, tuple[Any, tuple[str, ...], bool]] = {}
    for place in reversed(kind.__mro__):
        for value in vars(place).values():
            function = value.__func__ if isinstance(value, classmethod) else value
            message = getattr(value, "message", None) or getattr(function, "message", None)
            if message is not None:
                selector, types, on_class = message
                found[selector] = (function, types, on_class)
    meta: dict[str, tuple[Any, tuple[str, ...]]] = {}
    for selector, (function, types, on_class) in found.items():
        if on_class:
            meta[selector] = (function, types)
        else:
            add(made, selector, types, answer(kind, selector, function, types))
    objc.objc_registerClassPair(made)
    for selector, (function, types) in meta.items():
        calls = answer_of_class(kind, selector, function, types)
        add(objc.objc_getMetaClass(name), selector, types, calls)
    if objc.__objc_msg_forward2 == ffi.NULL or not Mocked._kept:
        objc.__objc_msg_forward2 = UNKNOWN
    return made


def add(where: Any, selector: str, types: tuple[str, ...], calls: Callable[..., Any]) -> None:
    """Add a method to a class."""
    returned, *taken = types
    prototype = f"{returned}({', '.join(('id', 'SEL', *taken))})"
    function = ffi.callback(prototype, calls, onerror=failed)
    Mocked._kept.append(function)
    name = libobjc().sel_registerName(selector.encode())
    encoded = b"@" if returned == "id" else b"v"
    libobjc().class_addMethod(where, name, ffi.cast("void *", function), encoded + b"@:")


def answer(
    kind: type[Mocked], selector: str, function: Any, types: tuple[str, ...]
) -> Callable[..., Any]:
    """The function by which C calls a method of an instance."""
    gives_object, gives_nothing = types[0] == "id", types[0] == "void"

    def calls(receiver: Any, _: Any, *arguments: Any) -> Any:
        here = world()
        address = int(ffi.cast("uintptr_t", receiver))
        target = here.alive.get(address)
        here.sent[selector] += 1
        if target is None:
            was = here.dead.get(address, kind.__name__)
            here.complain(f"{selector} is sent to a {was} that was freed")
            return ffi.NULL if gives_object else None if gives_nothing else 0
        result = function(target, *arguments)
        if gives_object:
            return ffi.NULL if result is None else result.pointer
        return result

    return calls


def answer_of_class(
    kind: type[Mocked], selector: str, function: Any, types: tuple[str, ...]
) -> Callable[..., Any]:
    """The function by which C calls a method of a class."""

    def calls(receiver: Any, _: Any, *arguments: Any) -> Any:
        world().sent[selector] += 1
        result = function(kind, *arguments)
        return result.pointer if isinstance(result, Mocked) else result

    return calls


def failed(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """A method raised: that is a misuse, or a mistake of the mock."""
    world().complain(str(error) if kind is Misuse else f"the mock failed: {kind.__name__}: {error}")


def unknown(receiver: Any, selector: Any) -> Any:
    """A message that a class has no method for."""
    target = world().alive.get(int(ffi.cast("uintptr_t", receiver)))
    name = ffi.string(libobjc().sel_getName(selector)).decode()
    what = f"a {type(target).__name__}" if target else "a class, or what is no object"
    world().complain(f"{name} is sent to {what}, which has no such method")
    return ffi.cast("void *", NOTHING)


def nothing(receiver: Any, selector: Any) -> Any:
    """nil."""
    return ffi.NULL


UNKNOWN: Final = ffi.callback("void *(id, SEL)", unknown)
NOTHING: Final = ffi.callback("id(id, SEL)", nothing)
"""Both as functions of C, which the runtime calls."""
