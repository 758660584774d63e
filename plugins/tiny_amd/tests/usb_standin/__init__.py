"""A bridge on USB without one: libusb's functions answered as a bridge's firmware answers them.

For tests only. `UsbMachine` takes the place of the operating system (tiny_hcq.use_system);
everything else of the interface USB is what a bridge would have.

    library.py      libusb: devices, handles, claims, transfers, with cffi's own pointers
    firmware.py     vendor requests, streams and SRAM, as the public firmware does them
    fabric.py       configuration and memory requests, routed from port to port to a card
    machine.py      files of sysfs, and all of the above in one

Requests that the firmware would drop, lose or do by halves without telling are a Mistake.
"""

from usb_standin.fabric import Mistake
from usb_standin.machine import UsbMachine

__all__ = ["Mistake", "UsbMachine"]
