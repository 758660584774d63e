"""A card at its registers, without a kernel driver of NVIDIA's.

For tests only.

    images.py     firmware and a video BIOS in the forms that NVIDIA's have
    memory.py     pages that are pinned, the card's memory, and walks of page tables
    falcon.py     the falcons: reset, DMA, signed programs
    fsp.py        the security processor of Hopper and Blackwell, and the GSP that it starts
    programs.py   what FWSEC and the booter check and do
    messages.py   the GSP's side of the message queues
    gsp.py        the GSP: its start, and RPCs, which the resource manager of rm_standin answers
    resources.py  what differs in that resource manager on a card's own processor

Values are checked as hardware and firmware would find them wrong: a program that is not loaded as
it was signed does not run, a page that no entry names is a fault. What would be punished silently
is a `Mistake`.
"""

from gsp_standin.gsp import Gsp
from gsp_standin.memory import Memory

__all__ = ["Gsp", "Memory"]
