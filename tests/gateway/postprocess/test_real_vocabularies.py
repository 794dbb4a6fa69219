"""With a real vocabulary, the pipeline's text is what the `tokenizers` library decodes from all ids at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.postprocess.pipeline import Pipeline
from tests.model_fixture import smollm2_path as smollm2_path
from tests.tokenizer_svc.model_directories import write_inst
from wire.messages import TokenChunk
from wire.vocabulary import Vocabulary

Model = tuple[Vocabulary, Tokenizer]


@pytest.fixture(scope="module")
def inst_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inst(tmp_path_factory.mktemp("inst"))


@pytest.fixture(scope="module", params=["inst_path", "smollm2_path"])
def model(request: pytest.FixtureRequest) -> Model:
    path = request.getfixturevalue(request.param)
    return Vocabulary.load(path), Tokenizer.from_file(str(path / "tokenizer.json"))


def shown(vocabulary: Vocabulary, ids: list[int], per_chunk: int) -> str:
    pipeline = Pipeline(vocabulary)
    deltas = []
    for at in range(0, len(ids), per_chunk):
        chunk = TokenChunk(request_id="r", attempt=0, index=at, token_ids=tuple(ids[at : at + per_chunk]))
        deltas += pipeline.feed(chunk)
    deltas += pipeline.close("stop")
    assert pipeline.num_tokens == len(ids)
    return "".join(delta.text for delta in deltas)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.integers(1, 4))
def test_any_text_comes_out_as_the_library_decodes_it(model: Model, text: str, per_chunk: int) -> None:
    vocabulary, tokenizer = model
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert shown(vocabulary, ids, per_chunk) == tokenizer.decode(ids)


def test_words_do_not_run_together_and_an_indent_stays(model: Model) -> None:
    vocabulary, tokenizer = model
    for text in ("red blue sky", "    if x:\n        return y", "naïve 你好 😀"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert shown(vocabulary, ids, 1) == tokenizer.decode(ids)
