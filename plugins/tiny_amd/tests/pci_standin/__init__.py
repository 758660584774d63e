"""Cards on a PCI bus without a driver: for tests only.

    machine.py      sysfs, BARs as windows, memory of the system
    card.py         registers by their numbers, hubs, engines and their queues
    boot.py         the security processor and the power controller
    translation.py  tables of pages, walked as the card walks them
    tables.py       a table of discovery, and files of firmware

Packets and kernels are executed by the stand-in of the kernel's driver and its emulator.
"""
