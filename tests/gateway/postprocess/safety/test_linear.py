"""The shipped classifier is what its script makes, and knows what it was not trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gateway.postprocess.safety.linear.corpus import sentences
from gateway.postprocess.safety.linear.model import BUILTIN, LinearModel
from gateway.postprocess.safety.linear.train import train


def test_the_shipped_weights_are_those_that_training_gives() -> None:
    weights, scale, bias = train([sentence for sentence in sentences() if not sentence.held_out])
    with np.load(BUILTIN) as shipped:
        assert np.abs(weights.astype(int) - shipped["weights"].astype(int)).max() <= 1
        assert (scale, bias) == pytest.approx((float(shipped["scale"]), float(shipped["bias"])))


def test_it_is_right_on_nearly_all_sentences_that_were_held_out() -> None:
    model = LinearModel.load(BUILTIN)
    held_out = [sentence for sentence in sentences() if sentence.held_out]
    assert {sentence.harassing for sentence in held_out} == {True, False}
    right = sum((model.score(text) >= 0.5) == harassing for text, harassing, _ in held_out)
    assert right >= 0.97 * len(held_out)


@pytest.mark.parametrize(
    "text", ["You are an idiot.", "Y\u043eu are st\u200bupid and worthless", "NOBODY WANTS YOU HERE"]
)
def test_it_finds_what_it_never_saw(text: str) -> None:
    assert LinearModel.load(BUILTIN).score(text) > 0.5


@pytest.mark.parametrize(
    "text", ["", "\ud83d", "The capital of France is Paris.", "You are a wonderful person.", "\u200b"]
)
def test_it_leaves_other_text_alone(text: str) -> None:
    assert LinearModel.load(BUILTIN).score(text) < 0.5


def test_a_file_that_holds_no_weights_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "w.npz"
    file.write_bytes(b"no")
    with pytest.raises(ValueError, match=r"w\.npz holds no weights"):
        LinearModel.load(file)
    np.savez(file, weights=np.zeros(3, np.int8), scale=1.0, bias=0.0)
    with pytest.raises(ValueError, match="weights are needed"):
        LinearModel.load(file)
