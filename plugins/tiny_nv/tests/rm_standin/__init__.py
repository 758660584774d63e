"""NVIDIA's kernel driver without a card: system calls answered as the driver answers them.

For tests only. `Machine` takes the place of the operating system (tiny_hcq.use_system);
everything else of the driver is what a card would have.

    machine.py      files, mappings and requests, checked as the kernel checks them
    layouts.py      structures by their offsets, for each branch of the driver
    resources.py    the resource manager: clients, handles, memory, channels
    controls.py     what objects are asked and told
    uvm.py          address spaces as UVM builds them
    objects.py      what handles stand for
    cards.py        what cards are and take
    gpu.py          a card's memory and clock
    channels.py     rings, pushbuffers and semaphores
    copies.py       the copy class
    compute.py      the compute class
    qmd.py          launch descriptors
    launches.py     launches: code, constants and what both need

Memory is real: what the host maps and what a card addresses are the same pages. Channels run when
`Machine.pump` is called, a method of each at a time. An access that no page table allows is an MMU
fault, told by the channel's error notifier. What only a card would notice, and not tell, is a
`Mistake`.
"""

from rm_standin.machine import Machine
from rm_standin.status import Mistake, Status

__all__ = ["Machine", "Mistake", "Status"]
