"""Storages: the memory and the pending values of tensors, writes to them, and their computation.

Floor 5. A tensor shows a storage, or a view of one; several tensors that show the same storage are
aliases. The files, from what a tensor shows to what a run leaves:

- what a tensor shows: `storage.py`
- writes: `writes.py` (where a write lands, and groups of which all are recorded or none),
  `change_tracking.py` (who is told that tensors change)
- runs: `realize.py` (the methods), `realization.py` (what to compute, and in what order),
  `liveness.py` (living tensors, and what they show afterwards), `held_values.py` (memory of nodes
  that stay)

**A storage has one value, a node.** Views hold the movement ops between it and what they show, and
derive their node when it is asked for (`Tensor.uop`). So a write is the store of another value, and
each alias sees it at once. Of memory the new value is an ASSIGN; of a value that is not computed
yet it is an INSERT. Nodes made before a write keep their meaning: they refer to the former value.

**Nothing is written before a run.** A write waits in the value of its storage, and whatever reads
the storage later reads the value with the write. `realize` collects the nodes that are asked for.
To these `realization.py` adds the other values that still have to read what is about to be
overwritten: found among the storages that wait, computed in the same schedule, before the write.

**After a run values are replaced by memory** (`liveness.py`): in the storages that show what was
computed, and in those whose values are made of it. A node that a gradient flows through stays in
its graph, and holds its memory instead (`held_values.py`), until one of the buffers that it was
computed from is written to.

**A failure leaves everything as it was.** An exception, or Ctrl-C, comes before or after the store
of a value, never between two that belong together: several are exchanged by one call of C, and the
undo log of a group of writes consists of the former values.
"""
