"""File formats, one module each, that read and write NumPy arrays and know nothing of tensors.

Floor 6. A file is untrusted: every length, offset and type is checked before it is used, and what
does not fit raises FileFormatError naming the file and the place.
"""

from tinycore.nn.files.idx import read_idx, write_idx
from tinycore.nn.files.pickled import Opaque
from tinycore.nn.files.safetensors import SafetensorsFile, TensorEntry, write_safetensors
from tinycore.nn.files.source import Budget, Source

__all__ = [
    "Budget",
    "Opaque",
    "SafetensorsFile",
    "Source",
    "TensorEntry",
    "read_idx",
    "write_idx",
    "write_safetensors",
]
