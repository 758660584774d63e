"""The interface PCI of NV: cards without NVIDIA's kernel driver.

bus.py        cards on the PCI bus, taken from their kernel driver and given back
registers.py  the registers of a card, and what they tell before anything is started
firmware.py   files that the card's own processor needs
bring_up.py   the steps in order, as far as they are known
"""
