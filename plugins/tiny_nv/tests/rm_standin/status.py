"""Statuses of the resource manager, and the two ways to say no."""

from __future__ import annotations

import enum

__all__ = ["Mistake", "Refused", "Status"]


class Mistake(AssertionError):
    """A mistake that is undefined on a card, or that the kernel would not notice."""


class Status(enum.IntEnum):
    """nvstatuscodes.h."""

    OK = 0
    GPU_IS_LOST = 0xF
    ILLEGAL_ACTION = 0x16
    IN_USE = 0x17
    INSUFFICIENT_RESOURCES = 0x1A
    INSUFFICIENT_PERMISSIONS = 0x1B
    INVALID_ADDRESS = 0x1E
    INVALID_ARGUMENT = 0x1F
    INVALID_CLASS = 0x22
    INVALID_CLIENT = 0x23
    INVALID_COMMAND = 0x24
    INVALID_DEVICE = 0x26
    INVALID_OBJECT_HANDLE = 0x33
    INVALID_PARAM_STRUCT = 0x3A
    INVALID_STATE = 0x40
    NO_MEMORY = 0x51
    NOT_SUPPORTED = 0x56
    OBJECT_NOT_FOUND = 0x57
    RESET_REQUIRED = 0x62
    STATE_IN_USE = 0x63
    TIMEOUT = 0x65


class Refused(Exception):
    """A request that the resource manager or UVM answers with a status."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.name)
        self.status = status
