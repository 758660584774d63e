"""The Python array API standard, revision 2024.12: `import tinycore.array_api as xp`.

Floor 6, on the public API. Arrays are `Tensor`s, dtypes those of `tinycore.dtypes`, devices names
such as "CPU". Each file is a section of the standard (https://data-apis.org/array-api/2024.12).
What is missing says why when it is asked for; docs/array-api.md lists everything. The names shadow
Python's own, so import the module, not its names.
"""

import sys

from tinycore._tracebacks import show_at_caller
from tinycore.array_api import (
    _linear,
    constants,
    creation,
    data_types,
    elementwise,
    linalg,
    manipulation,
    searching,
    statistical,
)
from tinycore.array_api._left_out import explained as _explained
from tinycore.array_api._linear import *  # noqa: F403  the namespace is made of these
from tinycore.array_api.constants import *  # noqa: F403
from tinycore.array_api.creation import *  # noqa: F403
from tinycore.array_api.data_types import *  # noqa: F403
from tinycore.array_api.elementwise import *  # noqa: F403
from tinycore.array_api.info import __array_namespace_info__
from tinycore.array_api.manipulation import *  # noqa: F403
from tinycore.array_api.searching import *  # noqa: F403
from tinycore.array_api.statistical import *  # noqa: F403

__array_api_version__ = "2024.12"

__all__ = ["__array_api_version__", "__array_namespace_info__", "linalg"]
__all__ += _linear.__all__
__all__ += constants.__all__
__all__ += creation.__all__
__all__ += data_types.__all__
__all__ += elementwise.__all__
__all__ += manipulation.__all__
__all__ += searching.__all__
__all__ += statistical.__all__

show_at_caller(sys.modules[__name__], __all__)


def __getattr__(name: str) -> object:
    """Say why a name of the standard is missing."""
    raise _explained(__name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)
