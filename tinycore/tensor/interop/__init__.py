"""Exchange with other libraries: NumPy, torch, DLPack, plain memory, and their names.

Floor 5. The files:

- `interop.py` (the methods), `dlpack.py`, `ufuncs.py` (NumPy's functions on tensors)
- `layout.py` (which tensors are strided views of memory)
- `foreign_names.py` (names of other libraries, each with what to use instead)

**Memory is shared where it can be, and copied where not.** A realized tensor on a device whose
memory the host can address, and that shows it by strides (`layout.py`), lends that memory, and
keeps it alive as long as someone uses it. Anything else is computed into separate memory for the
exchange, and keeps its graph. Memory that was lent is marked: kernels may be launched on it later,
the other side may write to it at any time, so no value that was computed from it is relied on
(`storage/held_values.py`).

**What comes in is checked before it is believed**: pointers, strides, sizes, dtypes and devices of
a producer, by the rules of DLPack 1.1; a malformed tensor raises SharingError and names the field.

**No numbers are lost silently.** bfloat16 and fp8 travel as the integers that they are stored in,
or are decoded to float32; a conversion that rounds is one the caller asked for.

**A name of torch, NumPy, JAX or tinygrad that is missing here** answers with what to use, from a
table that a test holds against the methods that exist.
"""
