"""Machine code in this process: an object file placed, relocated, and then made executable.

Pages are writable while they are filled and executable afterwards, never both at once.
"""

from __future__ import annotations

from tiny_cpu import _lib
from tiny_cpu.arch import host_machine
from tiny_hcq import ElfImage
from tinycore.errors import DeviceError

__all__ = ["Code"]


class Code:
    """The functions of one object file, by name in `symbols`, until the last reference goes.

    Raises DeviceError when the object is for another machine or calls what nobody has, and
    FileFormatError when it is damaged.
    """

    __slots__ = ("_pages", "symbols")

    def __init__(self, binary: bytes, name: str) -> None:
        image = ElfImage(binary, name)
        machine = image.machine.name.lower().replace("-", "_")
        if machine != host_machine():
            raise DeviceError(
                f"{name} was compiled for {machine}, and this machine is {host_machine()}. "
                "Leave out ARCH in DEV to compile for this one; DEV=NULL compiles for others."
            )
        self._pages = _lib.mapped_memory(image.size)
        base = _lib.address_of(self._pages)
        _lib.view(self._pages, image.size)[:] = image.place(base, _lib.find_symbol)
        _lib.make_executable(self._pages, image.size)
        self.symbols = {symbol: base + offset for symbol, offset in image.symbols.items()}

    def keep_forever(self) -> None:
        """Keep the code mapped: threads may be inside when the interpreter ends."""
        _lib.keep_forever(self._pages)
