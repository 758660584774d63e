"""A plugin of pytest: METAL is a mocked Mac, so that other tests can run on it.

export PYTHONPATH=plugins/tiny_metal/tests:tests/support
TENSOR_TESTS=METAL pytest -p simulate_metal tests/unit/tensor
"""

from simulated_metal import BACKEND  # type: ignore[attr-defined]

from tinycore.plugin import register

register(BACKEND)
