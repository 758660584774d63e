"""The interface PCI of NV: cards without NVIDIA's kernel driver.

bus.py          cards on the PCI bus, taken from their kernel driver and given back
machine.py      system calls that such a driver makes
access.py       BARs and pinned memory by the kernel's files; vfio.py, by vfio
registers.py    registers of a card, and what they tell before anything is started
bring_up.py     the steps in order, and their end
pages.py        pinned memory of the system
page_tables.py  page tables of the card's memory management unit
firmware.py     files that the card's own processors need
vbios.py        the program FWSEC in the video BIOS
falcon.py       signed programs on small processors
layout.py       the part of the card's memory that is protected
images.py       firmware of the card's own processor (GSP), in pinned memory
booter.py       its start by FWSEC and the booter: Ampere, Ada
fsp.py          its start by the security processor: Hopper, Blackwell
gsp.py          its start, whichever way, and calls to it
messages.py     its message queues
sequencer.py    register accesses that it asks for
manager.py      objects of the resource manager, by messages
card.py         memory, windows and channels of a card that runs
"""
