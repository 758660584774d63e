"""Facts that a table of times needs beside it: the processor, what is installed, what else ran."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter, sleep
from typing import Final

from benchmarks.peers import find_clang, package_of, processors, version_of

__all__ = ["facts", "load", "wait_for_quiet"]

_PAUSE_SECONDS: Final = 0.03
"""At least: the threads of the last peer spin on for a while, OpenBLAS's for 26 ms."""


def facts(peers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and value of each."""
    yield "processor", f"{_processor()}, {processors()} in use"
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}"
    yield "Python", platform.python_version()
    for package in dict.fromkeys(package_of(peer) for peer in peers):
        at = _revision() if package == "tinycore" else ""
        yield package, version_of(package) + at
    clang = find_clang()
    if clang:
        yield f"{Path(clang).name} on PATH", _version_of(clang)


def load() -> str:
    """Number of processes that wanted a processor in the last minute, where the system says."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def wait_for_quiet(seconds: float) -> float:
    """Wait until nobody else runs, at most so long; how long it was. Only Linux says who runs."""
    start = perf_counter()
    sleep(_PAUSE_SECONDS)
    while _running() > 1 and perf_counter() - start < seconds:
        sleep(_PAUSE_SECONDS)
    return perf_counter() - start


def _running() -> int:
    """Number of threads that run or could run at this moment, this one among them."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except (OSError, IndexError, ValueError):
        return 1


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


def _revision() -> str:
    """The commit of the tree, where git knows it."""
    folder = str(Path(__file__).parent)
    try:
        found = _first_line("git", "-C", folder, "describe", "--always", "--dirty", "--exclude=*")
    except OSError:
        return ""
    return f" at {found}" if found else ""


def _version_of(clang: str) -> str:
    return _first_line(clang, "--version")


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.partition("\n")[0].strip()
