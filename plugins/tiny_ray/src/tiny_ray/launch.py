"""The group of the workers of Ray Train, found without importing Ray."""

from __future__ import annotations

import sys
from functools import cache
from typing import Final

from tinycore.groups import Group
from tinycore.plugin import deferred

__all__ = ["started"]

workers: Final = deferred("tiny_ray.group:workers")
is_worker: Final = deferred("tiny_ray.group:is_worker")


def started() -> Group | None:
    """The workers of the training that this process is one of; None elsewhere."""
    if "ray.train" not in sys.modules or not is_worker():
        return None
    return joined()


@cache
def joined() -> Group:
    """The group: a worker that is replaced is another process."""
    found: Group = workers()
    return found
