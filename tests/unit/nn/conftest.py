"""Where the tensors of these tests run."""

from tests.unit.tensor.conftest import target

__all__ = ["target"]
