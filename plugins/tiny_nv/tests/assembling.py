"""PTX given to NVIDIA's assembler by tests of what plans and renderers write."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["assembled"]


def assembled(source: str, arch: str, ptxas: str, folder: Path) -> str:
    """Log of ptxas for a kernel that it has taken."""
    file = folder / "kernel.ptx"
    file.write_text(source)
    command = [ptxas, f"-arch={arch}", "-v", "-o", str(folder / "kernel.cubin"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{source}"
    return done.stderr
