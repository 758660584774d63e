"""`Code`: what a launch needs to know of a compiled kernel, whichever compiler made it.

Kernels of ir3 are kept in a container of our own: a line of JSON, then the machine code. Those of
Qualcomm's compiler are in its container (`container.py`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tiny_qcom import chip
from tinycore.errors import FileFormatError

__all__ = ["MAGIC", "Code", "Image", "Route"]

MAGIC: Final = b"tinycore ir3 1\n"

FIELDS: Final = {
    "full_registers": 63,
    "half_registers": 63,
    "branch_stack": 63,
    "private_bytes": 64 << 10,
    "samplers": 31,
}
"""The most that fields of registers hold; private memory is the last power of two in eight bits of
granules."""


class Route:
    """By which packet a launch starts, and who laid out its constants."""

    IR3: Final = "ir3"
    BLOB: Final = "blob"


class Image:
    """Access of an image slot: read (a texture) or written; a buffer of texels, of floats or
    halves, is read."""

    READ: Final = "read"
    TEXELS: Final = "texels"
    HALVES: Final = "halves"
    WRITTEN: Final = "written"


@dataclass(frozen=True)
class Code:
    """Machine code and its needs. Places in the constant file are bytes."""

    name: str
    route: str
    machine: bytes
    arguments: tuple[int, ...]
    """Offset of each argument: addresses of buffers by slot (8 bytes), then values."""
    constants: tuple[tuple[int, bytes], ...] = ()
    """Immediates of the compiler in the constant file: place and bytes."""
    constant_bytes: int = 0
    """The size of the constant file that the code reads."""
    entry: int = 0
    full_registers: int = 1
    half_registers: int = 0
    merged: bool = False
    branch_stack: int = 0
    private_bytes: int = 0
    """Private memory of a thread."""
    shared_bytes: int = 0
    group_register: int = 0xFC
    thread_register: int = 0xFC
    images: tuple[tuple[int, str], ...] = field(default=())
    """Slots of images, and whether each is read or written, in the order of descriptors."""
    samplers: int = 0
    launch_parameters: int = -1
    """Offset of Mesa's parameters of a launch, whose words 8 to 10 are the threads of a group on
    each axis; -1 if they are not read."""

    def __post_init__(self) -> None:
        for name, most in FIELDS.items():
            if not 0 <= getattr(self, name) <= most:
                raise FileFormatError(
                    f"{self.name}: a launch of an Adreno has at most {most} for {name}, and the "
                    f"code states {getattr(self, name)}: the container is damaged, or the kernel "
                    "must be computed in several"
                )
        limit = chip.CONSTANT_VECTORS * 16
        if self.constant_bytes > limit:
            raise FileFormatError(
                f"{self.name}: {self.constant_bytes} bytes of constants do not fit the {limit} of "
                "a launch: compute it in several kernels"
            )

    @property
    def groups(self) -> int:
        """Groups of 16 instructions."""
        return len(self.machine) // chip.INSTRUCTION_GROUP_BYTES

    def pack(self) -> bytes:
        """The container."""
        facts: dict[str, Any] = asdict(self)
        del facts["machine"]
        facts["constants"] = [(place, data.hex()) for place, data in self.constants]
        return MAGIC + json.dumps(facts).encode() + b"\n" + self.machine

    @classmethod
    def unpack(cls, binary: bytes, name: str) -> Code:
        """From the container. Raises FileFormatError."""
        head, newline, machine = binary[len(MAGIC) :].partition(b"\n")
        try:
            facts = json.loads(head)
            facts["constants"] = tuple((p, bytes.fromhex(d)) for p, d in facts["constants"])
            facts["arguments"] = tuple(facts["arguments"])
            facts["images"] = tuple((slot, how) for slot, how in facts["images"])
            made = cls(machine=machine, **facts)
        except (ValueError, KeyError, TypeError) as error:
            raise FileFormatError(f"{name}: this is no kernel of ir3: {error}") from error
        if not newline or not machine or len(machine) % chip.INSTRUCTION_GROUP_BYTES:
            raise FileFormatError(f"{name}: the machine code of the kernel is cut off")
        return made
