"""Where the tensors of these tests run."""

from tests.unit.tensor.conftest import chosen_runtime

__all__ = ["chosen_runtime"]
