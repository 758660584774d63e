"""Revision 2024.12 of the standard: every name, and how each function is called.

https://data-apis.org/array-api/2024.12/API_specification
"""

from __future__ import annotations

REVISION = "2024.12"

CONSTANTS = "e inf nan newaxis pi".split()

DATA_TYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128"
).split()

ATTRIBUTES = "T device dtype mT ndim shape size".split()

METHODS = (
    "__abs__ __add__ __and__ __array_namespace__ __bool__ __complex__ __dlpack__ "
    "__dlpack_device__ __eq__ __float__ __floordiv__ __ge__ __getitem__ __gt__ __index__ __int__ "
    "__invert__ __le__ __lshift__ __lt__ __matmul__ __mod__ __mul__ __ne__ __neg__ __or__ __pos__ "
    "__pow__ __rshift__ __setitem__ __sub__ __truediv__ __xor__ to_device"
).split()

UNARY = "(x, /)"
BINARY = "(x1, x2, /)"
REDUCTION = "(x, /, *, axis=None, keepdims=False)"
FOLD = "(x, /, *, axis=None, dtype=None, keepdims=False)"
SPREAD = "(x, /, *, axis=None, correction=0.0, keepdims=False)"
RUNNING = "(x, /, *, axis=None, dtype=None, include_initial=False)"
SORTING = "(x, /, *, axis=-1, descending=False, stable=True)"
FILLED = "(shape, *, dtype=None, device=None)"
LIKE = "(x, /, *, dtype=None, device=None)"

ELEMENTWISE = {
    **dict.fromkeys(
        "abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor "
        "imag isfinite isinf isnan log log10 log1p log2 logical_not negative positive real "
        "reciprocal round sign signbit sin sinh sqrt square tan tanh trunc".split(),
        UNARY,
    ),
    **dict.fromkeys(
        "add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor "
        "copysign divide equal floor_divide greater greater_equal hypot less less_equal logaddexp "
        "logical_and logical_or logical_xor maximum minimum multiply nextafter not_equal pow "
        "remainder subtract".split(),
        BINARY,
    ),
    "clip": "(x, /, min=None, max=None)",
}

CREATION = {
    "arange": "(start, /, stop=None, step=1, *, dtype=None, device=None)",
    "asarray": "(obj, /, *, dtype=None, device=None, copy=None)",
    "empty": FILLED,
    "empty_like": LIKE,
    "eye": "(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None)",
    "from_dlpack": "(x, /, *, device=None, copy=None)",
    "full": "(shape, fill_value, *, dtype=None, device=None)",
    "full_like": "(x, /, fill_value, *, dtype=None, device=None)",
    "linspace": "(start, stop, /, num, *, dtype=None, device=None, endpoint=True)",
    "meshgrid": "(*arrays, indexing='xy')",
    "ones": FILLED,
    "ones_like": LIKE,
    "tril": "(x, /, *, k=0)",
    "triu": "(x, /, *, k=0)",
    "zeros": FILLED,
    "zeros_like": LIKE,
}

DATA_TYPE_FUNCTIONS = {
    "astype": "(x, dtype, /, *, copy=True, device=None)",
    "can_cast": "(from_, to, /)",
    "finfo": "(type, /)",
    "iinfo": "(type, /)",
    "isdtype": "(dtype, kind)",
    "result_type": "(*arrays_and_dtypes)",
}

INDEXING = {
    "take": "(x, indices, /, *, axis=None)",
    "take_along_axis": "(x, indices, /, *, axis=-1)",
}

LINEAR = {
    "matmul": BINARY,
    "matrix_transpose": UNARY,
    "tensordot": "(x1, x2, /, *, axes=2)",
    "vecdot": "(x1, x2, /, *, axis=-1)",
}

MANIPULATION = {
    "broadcast_arrays": "(*arrays)",
    "broadcast_to": "(x, /, shape)",
    "concat": "(arrays, /, *, axis=0)",
    "expand_dims": "(x, /, axis)",
    "flip": "(x, /, *, axis=None)",
    "moveaxis": "(x, source, destination, /)",
    "permute_dims": "(x, /, axes)",
    "repeat": "(x, repeats, /, *, axis=None)",
    "reshape": "(x, /, shape, *, copy=None)",
    "roll": "(x, /, shift, *, axis=None)",
    "squeeze": "(x, /, axis)",
    "stack": "(arrays, /, *, axis=0)",
    "tile": "(x, repetitions, /)",
    "unstack": "(x, /, *, axis=0)",
}

SEARCHING = {
    "argmax": REDUCTION,
    "argmin": REDUCTION,
    "count_nonzero": REDUCTION,
    "nonzero": UNARY,
    "searchsorted": "(x1, x2, /, *, side='left', sorter=None)",
    "where": "(condition, x1, x2, /)",
}

SETS = dict.fromkeys("unique_all unique_counts unique_inverse unique_values".split(), UNARY)

SORTS = {"argsort": SORTING, "sort": SORTING}

STATISTICAL = {
    "cumulative_prod": RUNNING,
    "cumulative_sum": RUNNING,
    "max": REDUCTION,
    "mean": REDUCTION,
    "min": REDUCTION,
    "prod": FOLD,
    "std": SPREAD,
    "sum": FOLD,
    "var": SPREAD,
}

UTILITY = {
    "all": REDUCTION,
    "any": REDUCTION,
    "diff": "(x, /, *, axis=-1, n=1, prepend=None, append=None)",
}

INSPECTION = {"__array_namespace_info__": "()"}

LINALG = {
    "linalg.cholesky": "(x, /, *, upper=False)",
    "linalg.cross": "(x1, x2, /, *, axis=-1)",
    "linalg.det": UNARY,
    "linalg.diagonal": "(x, /, *, offset=0)",
    "linalg.eigh": UNARY,
    "linalg.eigvalsh": UNARY,
    "linalg.inv": UNARY,
    "linalg.matmul": BINARY,
    "linalg.matrix_norm": "(x, /, *, keepdims=False, ord='fro')",
    "linalg.matrix_power": "(x, n, /)",
    "linalg.matrix_rank": "(x, /, *, rtol=None)",
    "linalg.matrix_transpose": UNARY,
    "linalg.outer": BINARY,
    "linalg.pinv": "(x, /, *, rtol=None)",
    "linalg.qr": "(x, /, *, mode='reduced')",
    "linalg.slogdet": UNARY,
    "linalg.solve": BINARY,
    "linalg.svd": "(x, /, *, full_matrices=True)",
    "linalg.svdvals": UNARY,
    "linalg.tensordot": "(x1, x2, /, *, axes=2)",
    "linalg.trace": "(x, /, *, offset=0, dtype=None)",
    "linalg.vecdot": "(x1, x2, /, *, axis=-1)",
    "linalg.vector_norm": "(x, /, *, axis=None, keepdims=False, ord=2)",
}

FFT = dict.fromkeys(
    (
        "fft.fft fft.ifft fft.fftn fft.ifftn fft.rfft fft.irfft fft.rfftn fft.irfftn fft.hfft "
        "fft.ihfft fft.fftfreq fft.rfftfreq fft.fftshift fft.ifftshift"
    ).split(),
    "",
)

SECTIONS = {
    "Elementwise functions": ELEMENTWISE,
    "Creation functions": CREATION,
    "Data type functions": DATA_TYPE_FUNCTIONS,
    "Indexing functions": INDEXING,
    "Linear algebra functions": LINEAR,
    "Manipulation functions": MANIPULATION,
    "Searching functions": SEARCHING,
    "Set functions": SETS,
    "Sorting functions": SORTS,
    "Statistical functions": STATISTICAL,
    "Utility functions": UTILITY,
    "Inspection": INSPECTION,
    "Extension: linear algebra": LINALG,
    "Extension: Fourier transforms": FFT,
}
"""Sections of the standard: the functions of each, with their parameters and defaults."""

FUNCTIONS = {name: how for section in SECTIONS.values() for name, how in section.items()}
