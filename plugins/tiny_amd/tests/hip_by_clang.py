"""HIP compiled by the clang of the wheel `ziglang`, for cards that no COMGR at hand knows."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from tiny_amd.arch import arch_of, limits_of
from tiny_amd.hip import AmdHip
from tiny_amd.llvm import FEATURES
from tinycore.errors import CompileError
from tinycore.plugin import Backend, Toolchain

LANGUAGE: Final = (
    *("clang", "-cc1", "-triple", "amdgcn-amd-amdhsa", "-aux-triple", "x86_64-unknown-linux-gnu"),
    *("-fcuda-is-device", "-emit-obj", "-mcode-object-version=5", "-O3", "-fwrapv"),
    *("-std=c++17", "-x", "hip"),
    *(word for feature in FEATURES.split(",") for word in ("-target-feature", feature)),
)


class ZigCompiler:
    """HIP source to an object by zig's clang."""

    name = "COMGR"

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.key = f"zig {arch}"

    def compile(self, source: str) -> bytes:
        """The object. Raises CompileError."""
        with tempfile.TemporaryDirectory() as folder:
            given, made = Path(folder) / "kernel.hip", Path(folder) / "kernel.o"
            given.write_text(source)
            command = [*LANGUAGE, str(given), "-target-cpu", self.arch, "-o", str(made)]
            done = subprocess.run(
                [sys.executable, "-m", "ziglang", *command], capture_output=True, check=False
            )
            if done.returncode:
                raise CompileError("clang failed", log=done.stderr.decode(), source=source)
            return made.read_bytes()


def toolchain(arch: str = "") -> Toolchain[AmdHip]:
    """HIP by zig's clang."""
    name = arch or "gfx1100"
    return Toolchain("HIP", name, AmdHip(limits_of(arch_of(name))), ZigCompiler(name))


def of_hip_by_clang(backend: Backend) -> Backend:
    """The backend, whose one renderer is HIP."""
    return replace(backend, renderers={"HIP": toolchain})
