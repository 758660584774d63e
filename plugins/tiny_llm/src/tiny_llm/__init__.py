"""Language models for tinycore: GGUF files and Hugging Face folders, to talk with and to serve.

from tiny_llm import LanguageModel, Sampling

model = LanguageModel.load("SmolLM2-135M-Instruct.Q4_1.gguf")
for piece in model.generate("The capital of France is", Sampling(temperature=0), limit=20):
    print(piece.text, end="", flush=True)
"""

from tiny_llm.model import LanguageModel
from tiny_llm.sampling import Sampling
from tiny_llm.text import Piece, Speed

__all__ = ["LanguageModel", "Piece", "Sampling", "Speed"]
