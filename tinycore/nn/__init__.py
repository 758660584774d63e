"""Neural networks as programs over tensors: layers, optimizers, state, data sets, file formats.

Floor 6. The files, in the order in which a training passes them:

- `files/`: file formats, as NumPy arrays; `datasets.py`: data sets as tensors
- `initializers.py`: the first values of parameters
- `linear.py`, `convolution.py`, `normalization.py`, `dropout.py`, `attention.py`, `recurrent.py`:
  layers
- `optim/`: optimizers, schedules of learning rates, clipping, mixed precision
- `blocks.py`: numbers from the quantized blocks of ggml
- `paths.py`, `state.py`: parameters by name, saved and loaded
- `summary.py`: models as text
- `function.py`: parts of a network as functions of their arguments alone
- `onnx.py`: the runner of ONNX models, which tiny-onnx brings
"""

import sys
from typing import TYPE_CHECKING

from tinycore._tracebacks import show_at_caller
from tinycore.nn import datasets, optim, state
from tinycore.nn.attention import MultiHeadAttention
from tinycore.nn.convolution import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d
from tinycore.nn.dropout import Dropout
from tinycore.nn.linear import Embedding, Linear
from tinycore.nn.normalization import (
    BatchNorm,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LayerNorm2d,
    RMSNorm,
)
from tinycore.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from tinycore.nn.summary import described, summary
from tinycore.tensor.interop.foreign_names import (
    DEVICE_METHODS,
    OF_LAYER,
    OF_NN,
    ForeignName,
    public,
    unknown_name,
)

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BatchNorm",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "Dropout",
    "Embedding",
    "GRUCell",
    "GroupNorm",
    "InstanceNorm",
    "LSTMCell",
    "LayerNorm",
    "LayerNorm2d",
    "Linear",
    "MultiHeadAttention",
    "RMSNorm",
    "RNNCell",
    "datasets",
    "optim",
    "state",
    "summary",
]

__dir__ = __all__.copy
show_at_caller(sys.modules[__name__], __all__)


def _names(layer: object) -> list[str]:
    return public(object.__dir__(layer), OF_LAYER.keys() | DEVICE_METHODS)


for _layer in [found for found in map(globals().get, __all__) if isinstance(found, type)]:
    _layer.__repr__ = described  # type: ignore[method-assign, assignment]
    _layer.__dir__ = _names  # type: ignore[method-assign, assignment]
    for _name, _here in (OF_LAYER | dict.fromkeys(DEVICE_METHODS, OF_LAYER["to"])).items():
        setattr(_layer, _name, ForeignName(f"{_name!r}; here it is {_here}"))

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise unknown_name("nn", name, OF_NN, () if name.startswith("_") else __all__)
