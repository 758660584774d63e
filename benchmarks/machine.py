"""Facts that a table of times needs beside it: the processor, what is installed, what else ran."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers import find_clang, package_of, processors, version_of

__all__ = ["facts", "load"]


def facts(peers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and value of each."""
    yield "processor", f"{_processor()}, {processors()} in use"
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}"
    yield "Python", platform.python_version()
    for package in dict.fromkeys(package_of(peer) for peer in peers):
        yield package, version_of(package)
    clang = find_clang()
    if clang:
        yield f"{Path(clang).name} on PATH", _version_of(clang)


def load() -> str:
    """How many processes wanted a processor during the last minute, where the system says."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        named.setdefault(name.strip(), value.strip())
    if "model name" in named:
        family = f"family {named.get('cpu family', '?')} model {named.get('model', '?')}"
        wide = ", AVX-512" if "avx512f" in named.get("flags", "") else ""
        return f"{named['model name']} ({family}{wide})"
    if sys.platform == "darwin":
        return _first_line("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
    return platform.processor() or "unknown"


def _version_of(clang: str) -> str:
    return _first_line(clang, "--version")


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.partition("\n")[0].strip()
