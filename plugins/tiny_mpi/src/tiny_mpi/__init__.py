"""Groups of processes for tinycore, by MPI. Importing this module loads neither MPI nor NumPy.

`mpiexec -n 4 python train.py` starts four processes of one program. Their devices are RANK:0 to
RANK:3, which `ranks()` lists: `tensor.shard(tiny_mpi.ranks(), axis=0)`.
"""

from typing import TYPE_CHECKING, Any

from tinycore.plugin import Deferred

if TYPE_CHECKING:
    from tiny_mpi.parts import from_parts, gathered, mesh, ranks

__all__ = ["from_parts", "gathered", "mesh", "ranks"]
__dir__ = __all__.copy


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return Deferred(f"tiny_mpi.parts:{name}").resolve()
