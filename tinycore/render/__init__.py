"""Source text from linear kernels: families of languages; their dialects live in the backends."""

from tinycore.render.base import STREAM, Limits, LinearKernel, Renderer, pointer_of

__all__ = ["STREAM", "Limits", "LinearKernel", "Renderer", "pointer_of"]
