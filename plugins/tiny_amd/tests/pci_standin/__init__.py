"""A card on the PCI bus without one: what its memory holds, and files of its firmware."""
