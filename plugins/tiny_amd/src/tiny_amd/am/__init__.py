"""The interface PCI of AMD ("AM"): cards without a kernel driver.

bus.py    the protocol by which a card is reached, and the PCI bus by the kernel's files
cards.py  cards on the PCI bus, taken from their kernel driver and given back

There is no driver above these yet, so that DEV=PCI+AMD is refused.
"""
