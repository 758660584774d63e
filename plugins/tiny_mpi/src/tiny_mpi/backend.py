"""Declaration of RANK. Importing it loads neither MPI nor NumPy, and opens nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final

from tiny_mpi.settings import device_name, settings
from tinycore import Device
from tinycore.errors import SettingError
from tinycore.plugin import Backend, deferred

__all__ = ["BACKEND", "underlying"]

PASSED_ON: Final = frozenset({"graph", "image", "local_memory"})
"""Abilities of a device that it keeps as a RANK; others concern memory that the host addresses, or
devices that wait for each other."""


@cache
def underlying() -> Backend:
    """The backend that RANK_DEVICE names, or else DEV, with the renderer named there as the first.

    Raises SettingError where it is not installed, or computes nothing.
    """
    name, *details = device_name()
    if name in {"", "RANK"} or (name == "NULL" and not settings.RANK_DEVICE):
        name = "PYTHON" if Device.plugins.find("CPU") is None else "CPU"
    candidate = None if name == "NULL" else Device.plugins.find(name)
    if candidate is not None:
        candidate.load()
    if candidate is None or candidate.backend is None:
        raise SettingError(
            f"RANK is to compute on {name}, which is not installed, is broken or computes nothing. "
            f"Set RANK_DEVICE to one of {', '.join(n for n in Device.plugins.names if n != 'NULL')}"
        )
    found = candidate.backend
    named = {word: found.renderers[word] for word in details if word in found.renderers}
    return replace(found, renderers={**named, **found.renderers})


def declared() -> Backend:
    """The declaration: the underlying device's renderers, dtypes and limits."""
    backend = underlying()
    dtypes = {word for word in backend.capabilities if word[-1].isdigit() or word == "bool"}
    return Backend(
        name="RANK",
        api=backend.api,
        open=deferred("tiny_mpi.runtime:open_rank"),
        count=deferred("tiny_mpi.runtime:count"),
        renderers=backend.renderers,
        capabilities=(backend.capabilities & PASSED_ON) | dtypes | {"peer_copy"},
        priority=-1,
        settings=deferred("tiny_mpi.settings:RankSettings"),
    )


BACKEND: Final = declared()
