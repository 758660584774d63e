"""The cost of importing a plugin, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

__all__ = ["loaded_by_importing"]


def loaded_by_importing(package: str, *modules: str) -> list[str]:
    """The modules, of some, that a process has loaded once it has imported a package, by which it
    starts no thread.
    """
    script = (
        f"import sys, threading, {package}; assert threading.active_count() == 1; "
        f"print(*sorted({set(modules)} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return done.stdout.split()
