"""A linear classifier over hashed character n-grams: small, fast, and explained in a page; an example, no judge of men.

Text is folded as terms are (case, lookalikes, invisible characters), words are set apart by one space, and each run of
two to five characters counts once in one of 2^14 buckets. The score is the logistic function of the weighted sum.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.postprocess.safety.folding import folding

NUM_BUCKETS = 1 << 14
_SIZES = (2, 3, 4, 5)
_MULTIPLIER = np.uint32(0x9E3779B1)
BUILTIN = Path(__file__).with_name("harassment.npz")


def buckets(text: str) -> NDArray[np.uint32]:
    """Return the buckets that a text's n-grams fall into, each once."""
    folded = " ".join("".join(map(folding(accents=False).__getitem__, text)).split())
    codes = np.frombuffer(f" {folded} ".encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    hashes = np.full(len(codes), 17, dtype=np.uint32)
    found: list[NDArray[np.uint32]] = []
    for size in range(1, max(_SIZES) + 1):
        if len(codes) < size:
            break
        hashes = (hashes[: len(codes) - size + 1] ^ codes[size - 1 :]) * _MULTIPLIER
        hashes ^= hashes >> np.uint32(15)
        if size in _SIZES:
            found.append((hashes + np.uint32(size)) % np.uint32(NUM_BUCKETS))
    return np.unique(np.concatenate(found)) if found else np.zeros(0, dtype=np.uint32)


class LinearModel:
    """Weights (float32, one a bucket) and a bias. Raises ValueError for a file that does not hold them."""

    def __init__(self, weights: NDArray[np.float32], bias: float) -> None:
        if weights.shape != (NUM_BUCKETS,):
            raise ValueError(f"{NUM_BUCKETS} weights are needed, not {weights.shape}")
        self._weights = weights
        self._bias = bias

    @classmethod
    def load(cls, path: Path) -> LinearModel:
        """Read a file that `train` wrote: weights as int8 with one scale."""
        try:
            with np.load(path, allow_pickle=False) as data:
                return cls(data["weights"].astype(np.float32) * float(data["scale"]), float(data["bias"]))
        except (OSError, KeyError, ValueError) as error:
            raise ValueError(f"{path} holds no weights of ours: {error}") from None

    def score(self, text: str) -> float:
        """Return how sure the classifier is that the text is of its kind, between 0 and 1."""
        found = buckets(text)
        total = self._bias + float(self._weights[found].sum()) / math.sqrt(max(len(found), 1))
        return 1 / (1 + math.exp(-max(min(total, 50.0), -50.0)))
