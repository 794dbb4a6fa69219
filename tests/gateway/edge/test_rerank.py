"""POST /v1/rerank and /score through the ring: real desks, real replicas of a tiny reranker and a tiny BERT."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from tests.gateway.edge.openapi.test_document import answer_schema, validator
from tests.ring import MODEL, MakeRing, Ring
from tests.tiny_bert import MODEL as EMBEDDER
from tests.tiny_reranker import MAX_LEN, Oracle, write_tiny_reranker
from tests.tiny_reranker import MODEL as RERANKER

pytestmark = pytest.mark.anyio

QUERY = "the sky is blue"
DOCUMENTS = ["deep sea", "the blue sky.", "is " * 30, "the"]
POLICY = """
[[rule]]
id = "number"
kind = "pattern"
pattern = '\\d{4}-\\d{4}'
action = "redact"
"""


@pytest.fixture(scope="session")
def encoders(tiny_model: Path, tiny_bert: Path) -> list[Path]:
    reranker = tiny_model.parent / RERANKER
    return [tiny_bert, reranker if reranker.exists() else write_tiny_reranker(reranker)]


@pytest.fixture
async def ring(make_ring: MakeRing, encoders: list[Path]) -> AsyncIterator[Ring]:
    async with make_ring(encoders=encoders) as running:
        yield running


async def post(ring: Ring, path: str, **body: Any) -> dict[str, Any]:
    reply = await ring.http.post(path, json={"model": RERANKER, **body})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    documented = {"/rerank": "/v1/rerank", "/v2/rerank": "/v1/rerank", "/v1/score": "/score"}.get(path, path)
    validator(answer_schema(documented, "post", 200)).validate(found)
    return found


async def test_documents_are_ranked_by_the_scores_of_transformers(ring: Ring, encoders: list[Path]) -> None:
    oracle = Oracle(encoders[1])
    wanted = [oracle.score(QUERY, document) for document in DOCUMENTS]
    found = await post(ring, "/v1/rerank", query=QUERY, documents=DOCUMENTS)
    results = found["results"]
    assert [one["index"] for one in results] == sorted(range(4), key=lambda at: -wanted[at])
    for one in results:
        assert one["relevance_score"] == pytest.approx(wanted[one["index"]], abs=1e-5)
        assert one["document"] == {"text": DOCUMENTS[one["index"]]}
    num_tokens = sum(len(oracle.tokenizer(QUERY, document)["input_ids"]) for document in DOCUMENTS)
    assert found["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert found["model"] == RERANKER
    objects = [{"text": one, "title": "x"} for one in DOCUMENTS]
    for path in ("/rerank", "/v2/rerank"):
        best = await post(ring, path, query=QUERY, documents=objects, top_n=2, return_documents=False)
        assert best["results"] == [{k: v for k, v in one.items() if k != "document"} for one in results[:2]]
    assert len((await post(ring, "/rerank", query=QUERY, documents=["a"], top_n=9))["results"]) == 1
    assert 'gen_ai_operation_name="rerank"' in (await ring.http.get("/metrics")).text
    assert await ring.metric("headrace_inflight_requests") == 0


async def test_pairs_are_scored_one_with_many_or_each_with_its_own(ring: Ring, encoders: list[Path]) -> None:
    oracle = Oracle(encoders[1])
    queries = [QUERY, "the deep sea"]
    asks: list[tuple[Any, Any, list[tuple[str, str]]]] = [
        (QUERY, "deep sea", [(QUERY, "deep sea")]),
        (QUERY, DOCUMENTS, [(QUERY, one) for one in DOCUMENTS]),
        (queries, DOCUMENTS[:2], list(zip(queries, DOCUMENTS, strict=False))),
    ]
    for first, second, pairs in asks:
        found = await post(ring, "/score", text_1=first, text_2=second)
        wanted = [oracle.score(*pair) for pair in pairs]
        assert [one["index"] for one in found["data"]] == list(range(len(pairs)))
        np.testing.assert_allclose([one["score"] for one in found["data"]], wanted, atol=1e-5)
        assert (await post(ring, "/v1/score", text_1=first, text_2=second))["data"] == found["data"]


async def test_an_embedding_model_ranks_by_the_cosine_of_its_vectors(ring: Ring) -> None:
    queries, documents = ["the sky", "deep seas"], ["the sky is blue", "deep seas", "b"]
    async with ring.openai() as client:
        made = await client.embeddings.create(model=EMBEDDER, input=[*queries, *documents])
    vectors = np.array([one.embedding for one in made.data])
    cosines = vectors[:2] @ vectors[2:].T
    found = await post(ring, "/v1/rerank", model=EMBEDDER, query=queries[0], documents=documents)
    assert [one["index"] for one in found["results"]] == list(np.argsort(-cosines[0]))
    for one in found["results"]:
        assert one["relevance_score"] == pytest.approx(cosines[0][one["index"]], abs=1e-5)
    several = await post(ring, "/score", model=EMBEDDER, text_1=queries, text_2=documents[:2])
    np.testing.assert_allclose([one["score"] for one in several["data"]], cosines.diagonal()[:2], atol=1e-5)
    assert found["usage"]["prompt_tokens"] == made.usage.prompt_tokens - 5  # without the second query, once each


async def test_rankings_that_share_steps_do_not_change_one_another(ring: Ring, encoders: list[Path]) -> None:
    oracle = Oracle(encoders[1])
    found: dict[int, dict[str, Any]] = {}

    async def ask(number: int) -> None:
        documents = [f"{'the sea ' * (at % 7)}sky" for at in range(30 + number)]
        found[number] = await post(ring, "/v1/rerank", query="blue " * number, documents=documents)

    async with anyio.create_task_group() as tasks:
        for number in range(1, 5):
            tasks.start_soon(ask, number)
    for number, ranking in found.items():
        assert sorted(one["index"] for one in ranking["results"]) == list(range(30 + number))
        for one in (ranking["results"][0], ranking["results"][-1]):
            wanted = oracle.score("blue " * number, one["document"]["text"])
            assert one["relevance_score"] == pytest.approx(wanted, abs=1e-5)


async def test_a_pair_that_is_too_long_is_cut_if_that_is_asked_for(ring: Ring, encoders: list[Path]) -> None:
    oracle = Oracle(encoders[1])
    long = "deep seas . " * 30
    for most, kept in ((-1, MAX_LEN), (20, 20)):
        found = await post(ring, "/v1/rerank", query=QUERY, documents=[long], truncate_prompt_tokens=most)
        wanted = oracle.score(QUERY, long, truncation="only_second", max_length=kept)
        assert found["results"][0]["relevance_score"] == pytest.approx(wanted, abs=1e-5)
        assert found["usage"]["prompt_tokens"] == kept


RERANK, SCORE = "/v1/rerank", "/score"


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    (RERANK, {"query": ""}, "query", "is empty"),
    (RERANK, {"query": ["a"]}, "query", "must be a string, not an array"),
    (RERANK, {"documents": []}, "documents", "1 to 2048 texts, not 0"),
    (RERANK, {"documents": ["a"] * 2049}, "documents", "not 2049"),
    (RERANK, {"documents": "a"}, "documents", "must be an array"),
    (RERANK, {"documents": ["a", ""]}, "documents[1]", "is empty"),
    (RERANK, {"documents": ["a", 5]}, "documents[1]", "must be a string or an object, not the number 5"),
    (RERANK, {"documents": ["a", {"title": "x"}]}, "documents[1].text", "is missing"),
    (RERANK, {"top_n": 0}, "top_n", "at least 1, not 0"),
    (RERANK, {"max_tokens_per_doc": 100}, "max_tokens_per_doc", "use truncate_prompt_tokens"),
    (RERANK, {"documents": ["a", "sea " * 99]}, "documents", "documents[1] has 106 tokens with its query"),
    (RERANK, {"query": "sea " * 99, "truncate_prompt_tokens": -1}, "truncate_prompt_tokens", "leaves no room"),
    (RERANK, {"truncate_prompt_tokens": 65}, "truncate_prompt_tokens", "between 1 and 64, or be -1, not 65"),
    (RERANK, {"model": EMBEDDER, "query": "a " * 30}, "query", "query has 32 tokens"),
    (RERANK, {"model": EMBEDDER, "documents": ["a", "a " * 30]}, "documents", "documents[1] has 32 tokens"),
    (SCORE, {"text_1": []}, "text_2", "as many texts as text_1, 0, not 1"),
    (SCORE, {"text_1": ["a", "b"], "text_2": ["a"] * 3}, "text_2", "as many texts as text_1, 2, not 3"),
    (SCORE, {"text_1": [], "text_2": []}, "text_2", "1 to 2048 texts, not 0"),
    (SCORE, {"text_1": ["a", ""], "text_2": ["a", "b"]}, "text_1[1]", "is empty"),
    (SCORE, {"text_2": "sea " * 99}, "text_2", "text_2 has 106 tokens with its query"),
]


async def test_a_wrong_body_is_refused_by_field(ring: Ring) -> None:
    for path, body, param, message in WRONG:
        fine = {"query": QUERY, "documents": ["a"]} if path == RERANK else {"text_1": QUERY, "text_2": "a"}
        reply = await ring.http.post(path, json={"model": RERANKER, **fine, **body})
        assert reply.status_code == 400, (body, reply.text)
        assert reply.json()["error"]["param"] == param, (body, reply.text)
        assert message in reply.json()["error"]["message"]


async def test_each_kind_of_model_says_what_it_is_for(ring: Ring) -> None:
    asks: list[tuple[str, dict[str, Any], str]] = [
        (
            RERANK,
            {"model": MODEL, "query": "a", "documents": ["a"]},
            "generates text; documents are ranked by a reranker",
        ),
        (SCORE, {"model": MODEL, "text_1": "a", "text_2": "a"}, "generates text"),
        ("/v1/embeddings", {"model": RERANKER, "input": "a"}, "ranks documents; ask /v1/rerank"),
        ("/v1/chat/completions", {"model": RERANKER, "messages": [{"role": "user", "content": "a"}]}, "ask /v1/rerank"),
        (RERANK, {"model": "nobody", "query": "a", "documents": ["a"]}, "'nobody' is not served"),
    ]
    for path, body, message in asks:
        reply = await ring.http.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (404, "model")
        assert message in reply.json()["error"]["message"]
    kinds = {one["id"]: one["kind"] for one in (await ring.http.get("/v1/models")).json()["data"]}
    assert kinds == {MODEL: "chat", EMBEDDER: "embedding", RERANKER: "rerank"}


async def test_a_document_is_shown_as_the_safety_policy_left_it(
    make_ring: MakeRing, encoders: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    async with make_ring(encoders=encoders, safety_policy=str(tmp_path / "policy.toml")) as ring:
        found = await post(ring, RERANK, query=QUERY, documents=["sky 1234-5678", "sea"])
        shown = {one["index"]: one["document"]["text"] for one in found["results"]}
        assert "1234-5678" not in shown[0] and shown[1] == "sea"
