"""Wheels of packages of this tree, in an environment of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"


def wheel_of(folder: Path, into: Path) -> Path:
    """The wheel of a package, built without a network."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(into)],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return into / done.stdout.split()[-1]


def empty_environment(folder: Path, *wheels: Path) -> Path:
    """The Python of an environment with some wheels only, and what they depend on from here."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    for wheel in wheels:  # a wheel of pure Python is installed by unpacking it
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    here = [path for path in sys.path if path.endswith("site-packages")]
    (Path(site) / "dependencies.pth").write_text("\n".join(here) + "\n")
    return python
