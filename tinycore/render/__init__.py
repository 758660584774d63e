"""Source text from linear kernels: families of languages; their dialects live in the backends.

Floor 2. The files, in the order in which a kernel passes them:

- `base.py`: the interface of a renderer, the linear kernel, and `Limits`, what a device has
- `chains.py`: which kernels of two products a matrix unit computes as one
- `facts.py`, `inline.py`: what is known of nodes, and which of them are written where they are used
- `c_tables.py`, `cstyle.py`, `writer.py`, `guards.py`, `literals.py`: the family of C
- `cxx.py`: the family of C++, as CUDA C and HIP
- `llvm.py`, `llvm_writer.py`, `llvm_types.py`: LLVM IR
"""

from tinycore.render.base import STREAM, Limits, LinearKernel, Renderer, pointer_of

__all__ = ["STREAM", "Limits", "LinearKernel", "Renderer", "pointer_of"]
