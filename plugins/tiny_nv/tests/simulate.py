"""A plugin of pytest: CUDA is played by the executor, so that other tests can run on it.

export PYTHONPATH=plugins/tiny_nv/tests:tests/support
TENSOR_TESTS=CUDA:PTX pytest -p simulate tests/unit/tensor
"""

from simulated import BACKEND

from tinycore.plugin import register

register(BACKEND)
