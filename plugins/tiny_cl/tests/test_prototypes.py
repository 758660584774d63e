"""Prototypes that take the place of a driver's header agree with it and leave out no call."""

from __future__ import annotations

import pytest

from tiny_cl._prototypes import FLOATS, INTEGERS, OPTION, prototypes, prototypes_of
from tiny_cl.device import ClDevice
from tiny_cl.program import Programs
from tinycore.errors import CompileError

WIDTHS = ("2", "4", "8", "16")
KINDS = FLOATS + INTEGERS
NAMES = (
    *("get_group_id", "get_local_id", "barrier", "sqrt", "trunc", "read_imagef", "write_imagef"),
    *(f"{way}{width}" for way in ("vload", "vstore") for width in WIDTHS),
    *(f"convert_{kind}{width}" for kind in KINDS for width in WIDTHS),
)


def test_prototypes_agree_with_the_header(device: ClDevice) -> None:
    """A function declared twice, with one list of types and two results, does not compile."""
    lines = [line for name in NAMES for line in prototypes_of(name)]
    assert len(lines) == len(set(lines)) > 500
    programs = Programs(device.info, device._context)
    empty = "kernel void none_() {}\n"

    assert programs.compile("".join(lines) + empty, "-cl-std=CL1.2")
    with pytest.raises(CompileError):
        programs.compile("int __attribute__((overloadable)) sqrt(float);\n" + empty, "")


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ("kernel void k_() {}", []),
        ("kernel void k_(global float *a) { a[0] = sqrt(as_float(3)); }", ["sqrt"]),
        ("int half_of(int a) { return a / 2; }\nkernel void k_() { if (half_of(1)) {} }", []),
        ("kernel void k_() { barrier (0); for (;;) { vload4(0, 0); } }", ["barrier", "vload4"]),
    ],
)
def test_what_a_source_calls_is_declared(source: str, needed: list[str]) -> None:
    expected = "".join(line for name in needed for line in prototypes_of(name))

    assert prototypes(source) == expected


@pytest.mark.parametrize("call", ["get_global_id(0)", "exp(1.0f)", "vload3(0, a)", "mine(2)"])
def test_a_source_that_calls_something_else_is_left_to_the_driver(call: str) -> None:
    assert prototypes(f"kernel void k_(global float *a) {{ a[0] = sqrt(2.0f) + {call}; }}") is None


def test_no_type_is_left_to_be_converted(device: ClDevice) -> None:
    """Were only sqrt(float) declared, that of a double would be rounded before it is taken."""
    if device.info.platform_name != "Portable Computing Language":
        pytest.skip("another driver has its own way to its header")
    source = "kernel void k_(global double *a) { a[0] = sqrt(a[1]); a[2] = sqrt(a[3]); }"
    programs = Programs(device.info, device._context)

    declared = prototypes(source)
    assert declared is not None
    assert "double sqrt(double)" in declared
    assert programs.compile(declared + source, OPTION)
    with pytest.raises(CompileError):
        programs.compile(source, OPTION)
