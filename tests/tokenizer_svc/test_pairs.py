"""Pairs are encoded as transformers' tokenizers encode them; what all pairs of a query share is there once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.tiny_reranker import FAMILIES, MAX_LEN, write_tiny_reranker
from tokenizer_svc.embedding import EmbeddingPrompts
from wire.errors import ContextLengthExceededError, InvalidRequestError
from wire.messages import Pairs, Prompt, Request, unpack_ids
from wire.model_card import ModelCard

QUERY = "The sky is  blue."
DOCUMENTS = ("deep sea", " ", "is\nblue the é 你好", "the sky " * 5, "s")


@pytest.fixture(scope="module", params=FAMILIES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_reranker(tmp_path_factory.mktemp("rerankers") / request.param, request.param)


def build(path: Path, *inputs: str, num_queries: int = 1, **fields: Any) -> Prompt:
    pairs = Pairs(num_queries=num_queries)
    request = Request(kind="score", model="m", inputs=inputs, pairs=pairs, **fields)
    return EmbeddingPrompts(ModelCard.load(path)).build(request)


def pairs_of(prompt: Prompt, num_queries: int = 1) -> list[tuple[list[int], int]]:
    """Return the ids of each pair, and how many of them stand before its document."""
    ids, parts, at = unpack_ids(prompt.token_ids), [], 0
    for length in prompt.lengths:
        parts.append(ids[at : at + length])
        at += length
    starts = parts[:num_queries] if num_queries > 1 else parts[:1] * (len(parts) - 1)
    return [(start + end, len(start)) for start, end in zip(starts, parts[num_queries:], strict=True)]


def test_ids_and_kinds_are_those_of_transformers(path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(path)
    prompt = build(path, QUERY, *DOCUMENTS)
    found = pairs_of(prompt)
    for document, (ids, start) in zip(DOCUMENTS, found, strict=True):
        wanted = tokenizer(QUERY, document)
        assert ids == wanted["input_ids"], document
        if "token_type_ids" in wanted:
            assert [0] * start + [1] * (len(ids) - start) == wanted["token_type_ids"]
    assert prompt.num_tokens == sum(len(ids) for ids, _ in found)
    assert prompt.longest == max(len(ids) for ids, _ in found)
    assert len(prompt.lengths) == 1 + len(DOCUMENTS)


def test_several_queries_go_with_a_document_each(path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(path)
    queries = ("the sky", "blue is the sea")
    found = pairs_of(build(path, *queries, *DOCUMENTS[:2], num_queries=2), 2)
    wanted = [tokenizer(*pair)["input_ids"] for pair in zip(queries, DOCUMENTS, strict=False)]
    assert [ids for ids, _ in found] == wanted


@pytest.mark.parametrize("most", [0, 30])
def test_a_document_that_is_too_long_is_cut_if_that_is_asked_for_and_its_query_is_not(path: Path, most: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(path)
    long = "the deep sea " * 40
    found = pairs_of(build(path, QUERY, long, "s", cut_at=most))
    options = {"truncation": "only_second", "max_length": most or MAX_LEN}
    assert [ids for ids, _ in found] == [tokenizer(QUERY, one, **options)["input_ids"] for one in (long, "s")]
    with pytest.raises(
        ContextLengthExceededError, match=r"documents\[1\] has \d+ tokens with its query; .* 64 at most"
    ):
        build(path, QUERY, "s", long)
    with pytest.raises(InvalidRequestError, match="leaves no room") as refused:
        build(path, QUERY, "s", cut_at=5)
    assert refused.value.param == "truncate_prompt_tokens"


def test_a_control_token_that_a_caller_typed_is_text(path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(path)
    ends = tokenizer.sep_token_id
    plain, typed = (pairs_of(build(path, "the sky", text))[0][0] for text in ("s", f"s{tokenizer.sep_token}"))
    assert len(typed) > len(plain)
    assert typed.count(ends) == plain.count(ends)


def test_each_kind_of_request_is_for_its_kind_of_model(path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="scores documents"):
        EmbeddingPrompts(ModelCard.load(path)).build(Request(kind="embedding", model="m", inputs=("a",)))
