"""The interface PCI of AMD ("AM"): cards without a kernel driver. It has run on no card yet.

bus.py        the protocol by which a card is reached, and the PCI bus by the kernel's files
cards.py      cards on the PCI bus, taken from their kernel driver and given back
discovery.py  the table by which a card tells what it is made of
firmware.py   files of firmware, and the images in them
registers.py  numbers of registers, and access to them
vram.py       memory of the card
pages.py      tables of pages
hubs.py       the units that translate addresses
psp.py        the security processor, which loads all firmware
smu.py        the power controller
engines.py    the compute micro-controller and SDMA, and their queues
bring_up.py   the steps in order
interface.py  all of it with the face of the kernel's compute driver
"""
