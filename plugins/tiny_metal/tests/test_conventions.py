"""Calling conventions of every message: Apple's declarations against the plugin's table, by clang.

For arm64 and x86-64 of macOS clang compiles a function of Apple's types and one of the table's for
each message; their signatures in LLVM IR say which registers and which memory hold what. On this
machine each message is also called through cffi, as the plugin does, into a function of Apple's
types that notes what arrives.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from test_messages import DECLARED, PLAIN

from tiny_metal import _cdef
from tiny_metal._messages import MESSAGES, prototype
from tiny_metal._native import ffi

if TYPE_CHECKING:
    from cffi import FFI

pytestmark = pytest.mark.usefixtures("mock")

APPLE: Final = """
typedef struct objc_object *id;
typedef struct objc_selector *SEL;
#if defined(__aarch64__)
typedef _Bool BOOL;
#else
typedef signed char BOOL;
#endif
typedef long NSInteger;
typedef unsigned long NSUInteger;
typedef unsigned long long uint64_t;
typedef double CFTimeInterval;
typedef struct { NSUInteger width; NSUInteger height; NSUInteger depth; } MTLSize;
typedef struct _NSRange { NSUInteger location; NSUInteger length; } NSRange;
_Static_assert(sizeof(MTLSize) == 24 && _Alignof(MTLSize) == 8, "MTLSize");
_Static_assert(__builtin_offsetof(MTLSize, height) == 8, "MTLSize");
_Static_assert(__builtin_offsetof(MTLSize, depth) == 16, "MTLSize");
_Static_assert(sizeof(NSRange) == 16 && __builtin_offsetof(NSRange, length) == 8, "NSRange");
_Static_assert(sizeof(NSUInteger) == 8 && sizeof(BOOL) == 1 && sizeof(id) == 8, "words");
"""
"""<objc/objc.h>, NSObjCRuntime.h, NSRange.h and MTLTypes.h, as far as messages name their types."""
OURS: Final = f"typedef unsigned long uint64_t;\n{_cdef.DECLARATIONS.partition('id objc_')[0]}"
PLACES: Final = {
    "arm64": {
        "a message with an MTLSize": "void(ptr, ptr, ptr, ptr)",  # the addresses of copies
        "a message with an NSRange": "void(ptr, ptr, ptr, [2 x i64])",  # two registers
    },
    "x86_64": {
        "a message with an MTLSize": "void(ptr, ptr, 24 bytes of the stack, 24 bytes of the stack)",
        "a message with an NSRange": "void(ptr, ptr, ptr, i64, i64)",
    },
}
"""Passing of structures by each processor's convention: the two differ, and both are libffi's."""


def apple_type(kind: str) -> str:
    """A type of an Apple declaration in C: objects are `id`, enumerations their base."""
    kind = {"oneway void": "void", "instancetype": "id", "NSErrorDomain": "id"}.get(kind, kind)
    if re.fullmatch(r"(const )?id<\w+> \*|(NS|MTL)\w+ \*\*", kind) or "Reflection" in kind:
        return "id *"
    if re.fullmatch(r"id<\w+>|(NS|MTL)\w+ \*", kind):
        return "id"
    return PLAIN.get(kind, kind) if kind.startswith("MTL") else kind


def apple_messages() -> dict[str, tuple[str, ...]]:
    """Selectors with the types of Apple's declarations."""
    found = {}
    for line in DECLARED.strip().splitlines():
        rest = re.sub(r"^[+-] \([^)]*\)|;$", "", line)
        selector = "".join(re.findall(r"\w+:", rest)) or rest
        found[selector] = tuple(map(apple_type, re.findall(r"\(([^)]*)\)", line)))
    return found


def function_name(selector: str) -> str:
    return f"sent_{selector.replace(':', '_')}"


def functions(head: str, messages: Mapping[str, tuple[str, ...]]) -> str:
    """A function for each message, of its types."""
    lines = [head]
    for selector, (returned, *taken) in messages.items():
        arguments = ", ".join(f"{kind} a{i}" for i, kind in enumerate(("id", "SEL", *taken)))
        body = "" if returned == "void" else f"{returned} r = 0; return r;"
        lines.append(f"{returned} {function_name(selector)}({arguments}) {{ {body} }}")
    return "\n".join(lines)


def signatures(source: str, target: str) -> dict[str, str]:
    """Places of arguments on a processor, by the function: LLVM's types, without attributes."""
    from shader.compiler import toolchain  # noqa: PLC0415

    clang, _ = toolchain()
    words = [*clang, f"--target={target}-apple-macos14", "-x", "c", "-S", "-emit-llvm", "-O0"]
    done = subprocess.run(
        [*words, "-ffreestanding", "-nostdinc", "-o", "-", "-"],
        input=source, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {}
    for head, name, taken in re.findall(r"^define (.*?)@(\w+)\((.*)\) ", done.stdout, re.MULTILINE):
        places = [place_of(argument) for argument in re.split(r", (?![^\[(]*[\])])", taken)]
        found[name] = f"{place_of(head)}({', '.join(places)})"
    return found


def place_of(text: str) -> str:
    """The type of an argument. Of a BOOL, 0 or 1, only the byte counts, however it is extended."""
    if "sret" in text:
        return "memory of the caller"
    if "byval" in text:
        return "24 bytes of the stack" if "MTLSize" in text else "bytes of the stack"
    kind = re.search(r"\[\d+ x \w+\]|\b(ptr|i\d+|double|float|void)\b", text)
    assert kind is not None, text
    return "a byte" if kind[0] in ("i1", "i8") else kind[0]


@pytest.mark.parametrize("target", ["arm64", "x86_64"])
def test_every_message_is_called_by_apples_convention(target: str) -> None:
    apple = signatures(functions(APPLE, apple_messages()), target)

    assert signatures(functions(OURS, MESSAGES), target) == apple
    assert len(apple) == len(MESSAGES)
    both = ("dispatchThreadgroups:threadsPerThreadgroup:", "executeCommandsInBuffer:withRange:")
    for selector, expected in zip(both, PLACES[target].values(), strict=True):
        assert apple[function_name(selector)] == expected
    assert not any("memory of the caller" in text for text in apple.values())


@pytest.mark.parametrize("target", ["arm64", "x86_64"])
@pytest.mark.parametrize(
    ("selector", "wrong"),
    [
        ("GPUStartTime", ("uint64_t",)),
        ("status", ("BOOL",)),
        ("useResources:count:usage:", ("void", "id *", "NSUInteger")),
        ("setKernelBuffer:offset:atIndex:", ("void", "id", "BOOL", "NSUInteger")),
        ("executeCommandsInBuffer:withRange:", ("void", "id", "MTLSize")),
    ],
)
def test_a_wrong_type_is_seen(target: str, selector: str, wrong: tuple[str, ...]) -> None:
    apple = signatures(functions(APPLE, apple_messages()), target)
    ours = signatures(functions(OURS, MESSAGES | {selector: wrong}), target)

    assert [name for name in apple if apple[name] != ours[name]] == [function_name(selector)]


# --- calls on this machine

NOTES: Final = "unsigned char noted[256]; unsigned long count;\n"


def noting(messages: Mapping[str, tuple[str, ...]]) -> str:
    """Functions of Apple's types that note the bytes of each argument."""
    lines = [APPLE, NOTES]
    for selector, (returned, *taken) in messages.items():
        kinds = ("id", "SEL", *taken)
        arguments = ", ".join(f"{kind} a{i}" for i, kind in enumerate(kinds))
        note = "for (unsigned long k = 0; k < sizeof {0}; k++) noted[count++] = ((char *)&{0})[k];"
        body = ["count = 0;", *(note.format(f"a{i}") for i in range(len(kinds)))]
        if returned != "void":
            body.append(f"return ({returned}){'1' if returned == 'BOOL' else '0x4321'};")
        lines.append(f"{returned} {function_name(selector)}({arguments}) {{ {' '.join(body)} }}")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def receivers(mock: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[FFI, Any]:
    """The functions, compiled for this machine and loaded."""
    from cffi import FFI  # noqa: PLC0415
    from shader.compiler import FLAGS, run, target, toolchain  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("conventions")
    clang, linker = toolchain()
    flags = [flag for flag in FLAGS if flag != "-fno-rtti"]
    code, library = folder / "code.o", folder / "code.so"
    command = [*clang, *target(), "-x", "c", *flags, "-c", "-", "-o", str(code)]
    run(command, noting(apple_messages()))
    run([*linker, "-shared", str(code), "-o", str(library)])
    seen = FFI()
    seen.cdef(NOTES.replace("unsigned", "extern unsigned"))
    for selector in MESSAGES:
        seen.cdef(f"void {function_name(selector)}(void);")
    return seen, seen.dlopen(str(Path(library)))


@pytest.mark.parametrize("selector", MESSAGES)
def test_what_is_sent_arrives(selector: str, receivers: tuple[FFI, Any]) -> None:
    seen, library = receivers
    address = int(seen.cast("uintptr_t", seen.addressof(library, function_name(selector))))
    function = ffi.cast(prototype(selector), address)
    kinds = ffi.typeof(prototype(selector)).args
    given, expected = list[Any](), b""
    for place, kind in enumerate(kinds):
        if kind.kind == "struct":
            fields = [0x1111 * (place + 1) + field for field in range(len(kind.fields))]
            given.append(fields)
            expected += b"".join(field.to_bytes(8, "little") for field in fields)
        elif kind.kind == "pointer":
            given.append(ffi.cast(kind, 0x100000001 * (place + 1)))
            expected += (0x100000001 * (place + 1)).to_bytes(8, "little")
        else:
            size = ffi.sizeof(kind)
            value = 1 if size == 1 else (1 << 40) + place
            given.append(value)
            expected += value.to_bytes(size, "little")
    result = function(*given)
    assert bytes(seen.buffer(library.noted))[: library.count] == expected
    returned = MESSAGES[selector][0]
    if returned == "BOOL":
        assert result == 1
    elif returned == "double":
        assert result == float(0x4321)
    elif returned != "void":
        assert int(ffi.cast("uintptr_t", result)) == 0x4321
