"""Registers and spills of a kernel, as NVIDIA's assembler ptxas tells them, by nvrtc or by itself.

For `compile` and `compile_tests`, which run as programs beside this file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from tiny_nv.program import NvrtcCompiler, PtxCompiler
from tiny_nv.ptx import version_of
from tiny_nv.spills import spilled_bytes, unspilled

__all__ = ["HEAD", "Resources", "by_nvrtc", "by_ptxas", "cells", "processor_time"]

COLUMNS = (
    *("written as", "for", "kernels", "processor ms each", "most registers", "median"),
    *("that spill", "bytes", "which"),
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|---|---|{'---:|' * 6}---|"


@dataclass(frozen=True)
class Resources:
    """Registers and memory that one thread of a kernel takes."""

    registers: int
    spilled: int
    """Bytes of values that are stored to local memory because they fit no register, and loaded."""

    @classmethod
    def of(cls, compiler: NvrtcCompiler | PtxCompiler, source: str) -> Resources:
        """Resources of a kernel as a compiler leaves it. Raises CompileError."""
        _, log = unspilled(source, compiler.built)
        words = log.replace(",", "").split()
        return cls(int(words[words.index("Used") + 1]), spilled_bytes(log))


def by_nvrtc(source: str, arch: str) -> Resources:
    """Resources of CUDA C compiled by NVRTC. Raises CompileError."""
    return Resources.of(NvrtcCompiler(arch), source)


def by_ptxas(source: str, arch: str) -> Resources:
    """Resources of our PTX, whatever architecture it names. Raises CompileError."""
    needed = max([*re.findall(r"(?m)^\.version (\S+)", source), version_of(arch)])
    source = re.sub(r"(?m)^\.version .*", f".version {needed}", source, count=1)
    source = re.sub(r"(?m)^\.target .*", f".target {arch}", source, count=1)
    return Resources.of(PtxCompiler(arch), source)


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
