"""Scheduling: from a graph of tensor operations to an ordered list of launches.

Floor 3. The files, in the order in which a graph passes them:

- `canonical.py`: the key of the schedule cache, in which buffers are numbered parameters
- `compiled.py`, `disk.py`: schedules by key, in memory and on disk, and their use on real buffers
- `pipeline.py`, `state.py`: the list of passes, and what they fill in; `checks.py` verifies it
  after each, `explain.py` prints why
- `shard.py`, `shard_rules.py`, `collectives.py`: graphs over several devices become one per device
- `partial_writes.py`: writes to a part of memory; `index_values.py`: masks that indices alone make
- `attention.py`, `weighing.py`: attention in one kernel, in parts or in pieces
- `adjoint.py`: adjoints of windows become windows
- `operand_layout.py`: operands of matrix units are copied along what is summed
- `storage.py`, `comparisons.py`, `buffer_limit.py`: which values are stored, and why; all others
  are fused
- `split_reduction.py`: split-K, and sums of products
- `dependence.py`, `group.py`, `hazards.py`: which stored values share a kernel, and what is saved
- `nests.py`, `ranges.py`: a group of values as a nest of loops
- `numbering.py`, `access.py`: memory gets numbers, and groups become launches; `retention.py`:
  which nodes are replaced by memory
- `order.py`: launches, ordered so that memory is freed early
- `candidates.py`, `fusion_search.py`: kernels that become one. The pass calls
  `invariants.py` (what is the same in each replay of a capture stays apart), then one search for
  three kinds of groups: `row_fusion.py` (neighbors over the same rows, which `strips.py` emits,
  where a device runs loops), `row_inlining.py` (the same on a grid) and `product_chains.py` (two
  products and the reductions between them); `inlining.py` makes the kernels of the last two
- `emit.py`, `items.py`: each launch becomes a KERNEL, made once
- `memory_plan.py`: the memory plan, where temporary values lie
- `device_memory.py`: the buffers behind BUFFER nodes

`kernel.py` defines `Kernel`, and `limits.py` the limits that everything is decided for.
"""

from tinycore.schedule.device_memory import buffer_of, buffers
from tinycore.schedule.items import ScheduleItem
from tinycore.schedule.kernel import Kernel, memory_of
from tinycore.schedule.pipeline import kernelize

__all__ = ["Kernel", "ScheduleItem", "buffer_of", "buffers", "kernelize", "memory_of"]
