"""Captures: the launches of a function, recorded once and replayed on other inputs (`TinyJit`).

Floor 5. The files, in the order of the calls of a function:

- `jit.py` (the decorator, and which capture a call belongs to), `arguments.py` (its key)
- the second call: `proxies.py` (stand-ins for arguments), `capturing_run.py`,
  `change_sets.py` (what the function touches)
- from the third call on: `recorded_call.py`

**The first call runs the function as it is**, the second records it, later ones replay. The two
runs are compared before anything is replayed: other launches, other data from the host, or other
changes of the surroundings are refused. What was captured is one object, which is taken over when
all checks have passed, so that a refused capture leaves nothing behind.

**A call belongs to a capture by its key**: Python values, nesting, shapes, dtypes, devices, memory
that arguments share, settings. The content of tensors and the numbers of Variables are not in it.
Around the function a guard (`tensor/guards/`) compares what its code can reach. It can be left out,
`TinyJit(guards=False)`; nothing else knows of byte code and attributes.

**The function runs on stand-ins** while it is captured: other BUFFER nodes over the memory of its
arguments. A launch tells by the node whether the function reached memory through its argument or in
another way. Whatever it makes, changes, binds, or gives a gradient is reported to its change set.

**A replay binds and launches.** Each buffer of the recorded step is that of an argument, that of a
tensor outside (state, which must be as it was), or a temporary of the one memory plan. Writes that
wait on that memory are done first, and what other tensors still have to read of it is computed: the
rules of any run. Results are new tensors; their memory is used again once nobody else has it. A
replay that is interrupted, or fails, puts back what it has overwritten.

What is refused, and why, is in docs/jit.md and docs/decisions/0028-captures.md.
"""
