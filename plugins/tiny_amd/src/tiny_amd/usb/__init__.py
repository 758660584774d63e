"""The interface USB: a card behind an ASM2464PD bridge, reached by libusb.

library.py      libusb, from a wheel or the system
sysfs.py        bridges as Linux lists them: which there are, and why none can be used
transfers.py    an open bridge as USB sees it: control and bulk transfers, each with a time limit
bridge.py       vendor requests of its firmware: its own memory, PCIe packets, streams, its SRAM
pcie.py         ports, BARs and windows: enumeration of the card behind the bridge
bus.py          the way to the card as AM's driver uses it, with SRAM as memory of the system

Nothing here is imported before `DEV=USB+AMD` or `AMD_IFACE=USB` asks for it. **Nothing of it has
ever met a bridge.** Facts are those of the public firmware (tinygrad/asm2464pd-firmware, April of
2026), which takes the place of ASMedia's; where that is silent, docstrings say so.
"""
