"""An interpreter of ir3, the machine code of Adrenos: all threads of some groups at once."""

from adreno.ir3.run import execute

__all__ = ["execute"]
