"""Which GPUs there are, and why there are none."""

from __future__ import annotations

import sys

__all__ = ["count", "driver", "reason"]


def count() -> int:
    """How many GPUs can be used: none by this version."""
    return 0


def driver() -> list[str]:
    """What decides which GPUs there are: the system, which these folders come with."""
    return ["/System/Library/Frameworks/Metal.framework", "/System/Library/CoreServices"]


def reason() -> str:
    """Why there is none, with what to do."""
    system = str(sys.platform)
    if system != "darwin":
        return (
            f"Metal is a part of macOS, and this is {system}. DEV=NULL:MSL writes kernels "
            "and runs nothing"
        )
    return "this version of tiny-metal writes kernels for Metal and drives no GPU yet"
