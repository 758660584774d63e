"""Sources to kernels and their launches: logs, binaries, arguments, times."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy
import pytest

from tiny_cl.device import ClDevice, toolchain
from tiny_cl.probe import devices
from tiny_cl.program import Programs
from tinycore.errors import CompileError, DeviceError
from tinycore.plugin import ProgramInfo

ADD = """
kernel void add_(global float *base, const long start, const long amount) {
  ((global float *)((global char *)base + start))[get_global_id(0)] += amount;
}
"""
INFO = ProgramInfo("add", buffers=1, values=("amount",), grid=(4, 1, 1), block=(2, 1, 1))


def test_a_kernel_may_be_called_like_a_function_of_the_language(driver: None) -> None:
    """Some drivers find no kernel of such a name."""
    source = "kernel void step_(global float *base, const long start) { base[0] = 2.0f; }"
    opened = ClDevice(len(devices()) - 1, "")
    handle = opened.allocator.alloc(4)
    binary = toolchain(opened.arch).compiler.compile(source)
    opened.load(binary, ProgramInfo("step", buffers=1))([handle], [])

    found = numpy.zeros(1, "f")
    opened.allocator.read(found.data.cast("B"), handle)
    opened.close()
    assert found[0] == 2


def test_a_kernel_adds_its_value_where_the_view_starts(device: ClDevice) -> None:
    compiler = toolchain("0").compiler
    program = device.load(compiler.compile(ADD), INFO)
    handle = device.allocator.alloc(40)
    device.allocator.write(handle, numpy.zeros(10, "f").data.cast("B"))
    part = device.allocator.offset(handle, 32, 8)

    for amount in (3, 4):
        assert program([part], [amount]) is None
    assert program([handle], [1], wait=True) > 0  # type: ignore[operator]
    found = numpy.empty(10, "f")
    device.allocator.read(found.data.cast("B"), handle)
    assert found.tolist() == [1, 1, 8, 8, 8, 8, 8, 8, 7, 7]


def test_a_binary_is_a_program_for_who_did_not_compile_it(device: ClDevice) -> None:
    binary = toolchain("0").compiler.compile(ADD)
    fresh = Programs(device.info, device._context)
    program = fresh.load(binary)

    assert program is not fresh.load(binary)


def test_a_mistake_is_told_with_the_log_of_the_build(device: ClDevice) -> None:
    with pytest.raises(CompileError, match="cannot build a kernel: CL_BUILD_PROGRAM_FAILURE") as at:
        toolchain("0").compiler.compile("kernel void broken() { undeclared = 1; }")

    assert "undeclared" in at.value.log
    assert "undeclared = 1" in at.value.source


def test_what_is_no_binary_is_refused(device: ClDevice) -> None:
    with pytest.raises((DeviceError, CompileError)):
        device.load(b"not a binary", INFO)


def test_a_group_that_does_not_fit_is_refused(device: ClDevice) -> None:
    binary = toolchain("0").compiler.compile(ADD)
    huge = replace(INFO, block=(1 << 20, 1, 1))

    with pytest.raises(DeviceError, match=r"kernel add has groups of 1048576 threads; .* fit"):
        device.load(binary, huge)


def test_the_key_says_what_decides_a_binary(driver: None) -> None:
    compiler = toolchain("0").compiler

    assert "-cl-std=CL1.2" in compiler.key
    assert toolchain("0").compiler.key == compiler.key


@pytest.mark.slow
def test_programs_outlive_the_object_of_the_library(driver: None) -> None:
    """Else what releases them is no longer in memory, and the process crashes."""
    script = (
        "import gc\n"
        "from tiny_cl import _lib\n"
        "from tinycore import Context, Tensor\n"
        "from tinycore.engine.compile import programs\n"
        "with Context(DEV='CL'):\n"
        "    (Tensor.rand(8) + 1).tolist()\n"
        "_lib.library.cache_clear()\n"
        "gc.collect()\n"
        "assert programs\n"
        "programs.clear()\n"
        "print('cleared')\n"
    )

    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "cleared\n"), done.stderr
