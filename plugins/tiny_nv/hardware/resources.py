"""Registers and spills of a kernel, as NVIDIA's assembler ptxas tells them, by nvrtc or by itself.

For `compile` and `compile_tests`, which run as programs beside this file.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tiny_nv import _nvrtc
from tiny_nv.program import NvrtcCompiler
from tiny_nv.ptx import version_of
from tinycore.errors import CompileError

__all__ = ["HEAD", "Resources", "by_nvrtc", "by_ptxas", "cells", "processor_time"]

HEAD = """\
| written as | for | kernels | processor ms each | most registers | median | that spill | bytes | which |
|---|---|---:|---:|---:|---:|---:|---:|---|"""


@dataclass(frozen=True)
class Resources:
    """What one thread of a kernel takes."""

    registers: int
    spilled: int
    """Bytes of values that are stored to local memory because they fit no register, and loaded."""

    @classmethod
    def told(cls, log: str) -> Resources:
        """As `ptxas -v` says it."""
        words = log.replace(",", "").split()
        spilled = sum(int(words[i - 2]) for i, word in enumerate(words) if word == "spill")
        return cls(int(words[words.index("Used") + 1]), spilled)


def by_nvrtc(source: str, arch: str) -> Resources:
    """Of CUDA C. Raises CompileError."""
    options = (*NvrtcCompiler(arch).options, "--ptxas-options=-v")
    return Resources.told(_nvrtc.built(source, options)[1])


def by_ptxas(source: str, arch: str) -> Resources:
    """Of our PTX, whatever architecture it names. Raises CompileError."""
    target = re.search(r"(?m)^\.target (\w+)", source)
    if target is None or target[1] != arch:
        needed = max(re.findall(r"(?m)^\.version (\S+)", source) + [version_of(arch)])
        source = re.sub(r"(?m)^\.version .*", f".version {needed}", source, count=1)
        source = re.sub(r"(?m)^\.target .*", f".target {arch}", source, count=1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.ptx"
        file.write_text(source)
        command = [str(_nvrtc.tool("ptxas")), f"-arch={arch}", "-v", "-o", "/dev/null", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"ptxas refuses a kernel for {arch}", log=done.stderr, source=source)
    return Resources.told(done.stderr)


def cells(found: Iterable[tuple[str, Resources]], seconds: float) -> list[object]:
    """Cells of a row of the table, from "kernels" on, of kernels by name."""
    known = list(found)
    registers = [facts.registers for _, facts in known]
    names = sorted({f"`{name}`" for name, facts in known if facts.spilled})
    spilled = [facts.spilled for _, facts in known]
    return [
        *(len(known), f"{seconds / len(known) * 1e3:.0f}", max(registers), int(median(registers))),
        *(sum(map(bool, spilled)), sum(spilled), " ".join(names)),
    ]


def processor_time() -> float:
    """Seconds of processor that this process and those it waited for have taken."""
    return sum(os.times()[:4])
