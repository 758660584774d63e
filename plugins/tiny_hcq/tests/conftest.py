"""Devices of queues for a test, closed after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from queue_machine import Bus, QueuedDevice

from tinycore.config import Context

Make = Callable[..., QueuedDevice]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes devices of one group."""
    bus = Bus()
    made: list[QueuedDevice] = []

    def device(**options: Any) -> QueuedDevice:
        made.append(QueuedDevice(len(made), **{"bus": bus, **options}))
        return made[-1]

    yield device
    with Context(WAIT_TIMEOUT_MS=2000):
        for one in made:
            one.close()


@pytest.fixture
def device(make: Make) -> QueuedDevice:
    """One device."""
    return make()
