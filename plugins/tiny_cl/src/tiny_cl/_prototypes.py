"""Prototypes of the functions of OpenCL C that kernels call, in place of a driver's header of all.

PoCL gives every program clang's `opencl-c.h`, 16,000 prototypes, whose reading takes seven times as
long as all else that it does to build a kernel. The header's guard keeps it out (PoCL's
`_clang_opencl.h` asks for it too); types, constants and `as_*` come from another one, which stays.
Prototypes are those of the OpenCL C 1.2 specification, section 6.12, with the attributes that
clang's header gives them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from typing import Final

__all__ = ["OPTION", "prototypes"]

OPTION: Final = "-D_OPENCL_H_"
"""Keeps the header out."""

INTEGERS: Final = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")
FLOATS: Final = ("float", "double")
WIDTHS: Final = ("", "2", "4", "8", "16")
SPACES: Final = ("global", "local", "private")

CALLED: Final = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
DEFINED: Final = re.compile(r"\b(\w+)\([^()]*\)\s*\{")
WORDS: Final = frozenset("__attribute__ for if reqd_work_group_size return while".split())
"""Keywords before a parenthesis, which are no calls."""

CONSTANT: Final = "__attribute__((overloadable, const))"
PURE: Final = "__attribute__((overloadable, pure))"
WRITING: Final = "__attribute__((overloadable))"
TOGETHER: Final = "__attribute__((overloadable, convergent))"


def prototypes(source: str) -> str | None:
    """Prototypes of the functions that a source calls, a line each.

    None where it calls one that it does not define and that is not known here.
    """
    defined = set(DEFINED.findall(source))
    called = {name for name in CALLED.findall(source) if not name.startswith("as_")}
    named = {name: prototypes_of(name) for name in called - defined - WORDS}
    if not all(named.values()):
        return None
    return "".join(line for name in sorted(named) for line in named[name])


@cache
def prototypes_of(name: str) -> tuple[str, ...]:
    """All prototypes of a function; none where it is not known here."""
    for pattern, written in TABLE.items():
        if found := re.fullmatch(pattern, name):
            return tuple(f"{line};\n" for line in written(*found.groups()))
    return ()


def place(name: str) -> list[str]:
    """Index of a thread in its group, or of its group in the grid."""
    return [f"{CONSTANT} size_t {name}(uint)"]


def barrier() -> list[str]:
    """Barrier of the threads of a group."""
    return [f"{TOGETHER} void barrier(cl_mem_fence_flags)"]


def elementwise(name: str) -> list[str]:
    """A function of one float."""
    kinds = [f"{t}{n}" for t, n in product(FLOATS, WIDTHS)]
    return [f"{CONSTANT} {t} {name}({t})" for t in kinds]


def conversion(kind: str, width: str) -> list[str]:
    """From every type of as many lanes."""
    sources = [f"{t}{width}" for t in INTEGERS + FLOATS]
    return [f"{CONSTANT} {kind}{width} convert_{kind}{width}({s})" for s in sources]


def load(width: str) -> list[str]:
    """From every type of memory."""
    return [
        f"{PURE} {t}{width} vload{width}(size_t, const {space} {t} *)"
        for t, space in product(INTEGERS + FLOATS, SPACES)
    ]


def store(width: str) -> list[str]:
    """To every type of memory."""
    return [
        f"{WRITING} void vstore{width}({t}{width}, size_t, {space} {t} *)"
        for t, space in product(INTEGERS + FLOATS, SPACES)
    ]


def pixel_load() -> list[str]:
    """Through a sampler, by column and row."""
    return [f"{PURE} float4 read_imagef(read_only image2d_t, sampler_t, int2)"]


def pixel_store() -> list[str]:
    """By column and row."""
    return [f"{WRITING} void write_imagef(write_only image2d_t, int2, float4)"]


TABLE: Final[Mapping[str, Callable[..., list[str]]]] = {
    r"(get_group_id|get_local_id)": place,
    r"barrier": barrier,
    r"(sqrt|trunc)": elementwise,
    rf"convert_({'|'.join(INTEGERS + FLOATS)})(2|4|8|16)": conversion,
    r"vload(2|4|8|16)": load,
    r"vstore(2|4|8|16)": store,
    r"read_imagef": pixel_load,
    r"write_imagef": pixel_store,
}
"""By how a function is called: what writes its prototypes, for all types that kernels have. A type
left out would be converted silently, so all are written.
"""
