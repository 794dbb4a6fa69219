"""Trains the shipped classifier: python -m gateway.postprocess.safety.linear.train [FILE]

Logistic regression by gradient descent on all sentences at once, without any randomness: the same corpus gives the
same file. To train one of your own, give `train` your sentences.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.postprocess.safety.linear.corpus import Sentence, sentences
from gateway.postprocess.safety.linear.model import BUILTIN, NUM_BUCKETS, LinearModel, buckets

_ROUNDS = 300
_RATE = 40.0
_SHRINK = 1e-4


def train(corpus: Sequence[Sentence]) -> tuple[NDArray[np.int8], float, float]:
    """Return weights, their scale, and the bias. Both classes weigh the same, however many sentences they have."""
    features = [buckets(sentence.text) for sentence in corpus]
    columns = np.concatenate(features)
    lengths = np.array([len(found) for found in features])
    rows = np.repeat(np.arange(len(features)), lengths)
    values = (1 / np.sqrt(lengths))[rows]
    truth = np.array([sentence.harassing for sentence in corpus], dtype=np.float64)
    share = np.where(truth == 1, 0.5 / truth.sum(), 0.5 / (1 - truth).sum())
    weights = np.zeros(NUM_BUCKETS)
    bias = 0.0
    for _ in range(_ROUNDS):
        sums = np.bincount(rows, weights=weights[columns] * values, minlength=len(features)) + bias
        error = (1 / (1 + np.exp(-sums)) - truth) * share
        weights -= _RATE * (
            np.bincount(columns, weights=error[rows] * values, minlength=NUM_BUCKETS) + _SHRINK * weights
        )
        bias -= _RATE * float(error.sum()) * 0.1
    scale = float(np.abs(weights).max()) / 127
    return np.round(weights / scale).astype(np.int8), scale, bias


def main() -> None:
    """Train on the shipped corpus, write the file, and tell how well it does on what was held out."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else BUILTIN
    corpus = sentences()
    weights, scale, bias = train([sentence for sentence in corpus if not sentence.held_out])
    np.savez_compressed(path, weights=weights, scale=scale, bias=bias)
    model = LinearModel.load(path)
    held_out = [sentence for sentence in corpus if sentence.held_out]
    right = sum((model.score(text) >= 0.5) == harassing for text, harassing, _ in held_out)
    sys.stdout.write(f"{path}: {path.stat().st_size} bytes, {right} of {len(held_out)} held-out sentences right\n")


if __name__ == "__main__":
    main()
