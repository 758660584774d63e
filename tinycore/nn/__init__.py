"""Neural networks as programs over tensors: layers, optimizers, state, data sets, file formats.

Floor 6, on the public API only. A layer is a plain object with tensors as attributes and a
`__call__`; there is no base class to inherit from and nothing to register. `nn.state` finds a
model's tensors by walking its attributes.
"""

from typing import TYPE_CHECKING

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
from tinycore.tensor.foreign_names import OF_NN, unknown_name

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
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise unknown_name("nn", name, OF_NN, () if name.startswith("_") else __all__)
