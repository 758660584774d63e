"""Can kernels run in this process? Asked before anything is opened."""

from __future__ import annotations

import importlib.util
import sys

from tiny_cpu.arch import MACHINES, host_machine
from tiny_cpu.clang import is_clang_installed

__all__ = ["count", "reason"]


def count() -> int:
    """1 where kernels can run; CPU:1 and on are more names for the same processor. Else 0."""
    return 0 if _platform_problem() else 1


def reason() -> str:
    """Why kernels cannot run here, with what to do; empty when they can."""
    return _platform_problem() or _compiler_problem()


def _platform_problem() -> str:
    machine, bits = host_machine(), 64 if sys.maxsize > 1 << 32 else 32
    if sys.platform in {"linux", "darwin"} and machine in MACHINES and bits == 64:
        return ""
    return (
        f"tiny-cpu runs on Linux and macOS, on 64-bit {' and '.join(MACHINES)}; this is "
        f"{sys.platform} on {machine} with a {bits}-bit Python. DEV=PYTHON computes anywhere."
    )


def _compiler_problem() -> str:
    if is_clang_installed() or importlib.util.find_spec("llvmlite"):
        return ""
    return "no compiler: run `pip install llvmlite`, or install clang 15 or newer."
