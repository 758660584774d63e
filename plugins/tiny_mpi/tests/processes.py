"""Programs in several processes, as `mpiexec` starts them, with a limit of time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest

SECONDS = 300
"""Limit of a program, which on cores that others keep busy takes several times its time alone."""
UNNOTICED = ("sh", "-c", '"$@"; [ $? = 137 ] && exec sleep 30; exit 1', "sh")
"""A command that outlives the one it runs, if that is killed."""


def mpiexec() -> str:
    """The launcher, beside the Python of the tests or on the PATH; skips where there is none."""
    pytest.importorskip("mpi4py")
    scripts = sysconfig.get_path("scripts")
    found = shutil.which("mpiexec", path=scripts) or shutil.which("mpiexec")
    if found is None:
        pytest.skip("no mpiexec is installed: pip install mpich")
    return found


def environment(**variables: str) -> dict[str, str]:
    """The variables of a program: one thread in each process, and the packages of this one."""
    known = {"CPU_COUNT": "1", "DEV": "CPU:LLVM", "PYTHONPATH": os.pathsep.join(sys.path)}
    return {**os.environ, **known, **variables}


def finished(
    count: int,
    program: Path | str,
    *arguments: str,
    within: tuple[str, ...] = (),
    seconds: float = SECONDS,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program, or its text, in `count` processes, to its end; `within` another command."""
    begun = [str(program)] if isinstance(program, Path) else ["-c", program]
    return subprocess.run(
        [mpiexec(), "-n", str(count), *within, sys.executable, *begun, *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env=environment(**variables or {}),
    )


def output(count: int, program: Path | str, *arguments: str, **variables: str) -> str:
    """Output of a program in `count` processes, which all end well."""
    result = finished(count, program, *arguments, variables=variables)
    assert result.returncode == 0, result.stderr
    return result.stdout
