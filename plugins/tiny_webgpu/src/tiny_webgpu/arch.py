"""Optional features and limits of a WebGPU device: the ARCH of `DEV=WEBGPU:WGSL:ARCH`.

As text it is words joined by commas, `f16,threads=1024,shared=32768`; what is not said is what the
standard guarantees. Source: WebGPU, W3C Candidate Recommendation, section 3.6.2 "Limits".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

from tinycore.errors import SettingError
from tinycore.render import Limits

__all__ = ["Arch"]

_FLAGS: Final = {"f16": "float16", "software": "software"}
_FIELDS: Final = {
    "threads": "threads",
    "grid": "grid",
    "shared": "shared_bytes",
    "buffers": "buffers",
    "rounds": "rounds",
}
"""The fields that words set."""
_THREADS_WANTED: Final = 256
"""An ARCH that every device can run and that suffices for any kernel."""
_THREADS_BUSY: Final = 1 << 12
"""Threads that keep a device busy."""
_FORM: Final = (
    "f16, software, threads=N, shared=BYTES, buffers=N, grid=N and rounds=N, joined by commas"
)


@dataclass(frozen=True)
class Arch:
    """The features and limits of a device as far as kernels depend on them."""

    float16: bool = False
    """It computes in f16 (the feature shader-f16)."""
    threads: int = 256
    """Threads in a group at most."""
    grid: int = 65_535
    """Groups per axis at most."""
    shared_bytes: int = 16_384
    buffers: int = 8
    """Buffers that a kernel can take."""
    software: bool = False
    """A driver in software: memory that threads share is no nearer there, and they wait in turn."""
    rounds: int = 0
    """Most rounds of a thread's loops; 0 for no limit."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The features and limits that a text names. Raises SettingError."""
        found: dict[str, Any] = {}
        for word in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = word.partition("=")
            if word in _FLAGS:
                found[_FLAGS[word]] = True
            elif name in _FIELDS and value.isdigit():
                found[_FIELDS[name]] = int(value)
            else:
                raise SettingError(f"{word!r} in the ARCH {text!r} is not understood; use {_FORM}.")
        return cls(**found)

    def __str__(self) -> str:
        standard = type(self)()
        words = [word for word, field in _FLAGS.items() if getattr(self, field)]
        for word, field in _FIELDS.items():
            if (value := getattr(self, field)) != getattr(standard, field):
                words.append(f"{word}={value}")
        return ",".join(words)

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads in a group per axis at most; the standard has the third axis shorter."""
        return (self.threads, self.threads, min(self.threads, 64))

    def limits(self) -> Limits:
        """The limits of the device, by which plans are made."""
        return Limits(
            threads=_THREADS_BUSY,
            grid=(self.grid, self.grid, self.grid),
            grid_varies=True,
            block=self.block,
            block_threads=self.threads,
            block_wanted=min(self.threads, _THREADS_WANTED),
            shared_bytes=self.shared_bytes,
            shared_is_near=not self.software,
            buffers=self.buffers,
        )
