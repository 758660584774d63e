"""The kernel's compute driver without a card: system calls answered as amdkfd answers them.

For tests only. `Machine` takes the place of the operating system (tiny_hcq.use_system);
everything else of the driver is what a card would have.

    machine.py      files, mappings and ioctls, checked as the kernel checks them
    cards.py        topology of cards, and the sizes that the kernel wants of queues on them
    gpu.py          what a card addresses; packets that it does not take are a Mistake
    queues.py       rings: doorbells, pointers, what is executed next
    pm4.py          the command processor: registers, dispatches, waits, end-of-pipe writes
    aql.py          packets of 64 bytes
    sdma.py         engines that copy

Memory is real: what the host maps and what a card addresses are the same pages. Queues run when
somebody waits for events, one packet of each at a time; dispatches that nothing waits for between
run in reverse order. An access that no page table allows is a memory fault, told by an event. What
only a card would notice, and not tell, is a Mistake.
"""

from kfd_standin.gpu import Mistake
from kfd_standin.machine import Machine

__all__ = ["Machine", "Mistake"]
