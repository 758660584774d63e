"""Optimizers, and what belongs to training beside them.

How a gradient changes a parameter (`SGD`, `Adam`, ...), how the rate changes on the way
(`lr_scheduler`), how gradients are kept small (`clip_grad_norm_`, `clip_grad_value_`), and how to
train in half precision (`GradScaler`, `compute_in`). All of it is tensors, so that one step, with
everything, is one graph that a TinyJit captures.
"""

from typing import TYPE_CHECKING

from tinycore.nn.optim import lr_scheduler
from tinycore.nn.optim.clipping import clip_grad_norm_, clip_grad_value_
from tinycore.nn.optim.descent import LARS, SGD, Muon
from tinycore.nn.optim.moments import LAMB, Adam, AdamW
from tinycore.nn.optim.optimizer import Optimizer, OptimizerGroup
from tinycore.nn.optim.precision import GradScaler, compute_in
from tinycore.tensor.interop.foreign_names import OF_OPTIM, unknown_name

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "Adam",
    "AdamW",
    "GradScaler",
    "Muon",
    "Optimizer",
    "OptimizerGroup",
    "clip_grad_norm_",
    "clip_grad_value_",
    "compute_in",
    "lr_scheduler",
]
__dir__ = __all__.copy

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise unknown_name("nn.optim", name, OF_OPTIM, () if name.startswith("_") else __all__)
