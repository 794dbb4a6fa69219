"""POST /v1/rerank (Jina's, Cohere's and vLLM's body) and /score (vLLM's): texts in, how well they go together out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np

from gateway.edge.desks.embeddings import Vectors
from gateway.edge.identity import new_id
from gateway.edge.schema.answers import Answer
from gateway.edge.schema.embeddings import MAX_INPUTS, EmbeddingUsage, cut_at
from gateway.edge.schema.sampling import fail
from gateway.edge.schema.unknown import Misleading
from wire.messages import Pairs, Request
from wire.model_card import ModelCard

_MOVED = {
    "activation": Misleading("is not supported", (True,)),
    "max_chunks_per_doc": Misleading("a document is read as a whole"),
    "max_tokens_per_doc": Misleading("use truncate_prompt_tokens"),
    "rank_fields": Misleading("a document is its text", (["text"], [])),
    "use_activation": Misleading("is not supported", (True,)),
}


class Document(msgspec.Struct):
    """A document; whatever else it has is ignored."""

    text: str


class RerankRequest(msgspec.Struct, kw_only=True):
    """The body; `user` is ignored. `truncate_prompt_tokens` is vLLM's: -1 keeps of a pair what the model takes."""

    moved: ClassVar[dict[str, Misleading]] = _MOVED
    model: str
    query: str
    documents: list[str | Document]
    top_n: int | None = None
    return_documents: bool | None = None
    truncate_prompt_tokens: int | None = None
    user: str | None = None


class ScoreRequest(msgspec.Struct, kw_only=True):
    """The body: one text with one or many, or lists of the same length."""

    moved: ClassVar[dict[str, Misleading]] = _MOVED
    model: str
    text_1: str | list[str]
    text_2: str | list[str]
    truncate_prompt_tokens: int | None = None
    user: str | None = None


class RankedDocument(Answer):
    """A document, by its place in the request."""

    index: int
    relevance_score: float
    document: Document | msgspec.UnsetType = msgspec.UNSET


class Ranking(Answer):
    """The answer of /v1/rerank: the best first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: EmbeddingUsage


class Score(Answer):
    """How well a pair goes together."""

    index: int
    object: Literal["score"]
    score: float


class ScoreList(Answer):
    """The answer of /score."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: EmbeddingUsage


def translate_rerank(body: RerankRequest, card: ModelCard, *, tenant: str = "") -> Request:
    """Check the body and return the request. Raises InvalidRequestError naming the field."""
    if body.top_n is not None and body.top_n < 1:
        raise fail("top_n", f"must be at least 1, not {body.top_n}.")
    documents = [one if isinstance(one, str) else one.text for one in body.documents]
    return _request(card, [body.query], documents, body.truncate_prompt_tokens, Pairs(), tenant)


def translate_score(body: ScoreRequest, card: ModelCard, *, tenant: str = "") -> Request:
    """Check the body and return the request. Raises InvalidRequestError naming the field."""
    first, second = ([given] if isinstance(given, str) else given for given in (body.text_1, body.text_2))
    if len(first) != 1 and len(first) != len(second):
        raise fail("text_2", f"must hold as many texts as text_1, {len(first)}, not {len(second)}.")
    pairs = Pairs(num_queries=len(first), query="text_1", document="text_2")
    return _request(card, first, second, body.truncate_prompt_tokens, pairs, tenant)


def _request(
    card: ModelCard, queries: Sequence[str], documents: Sequence[str], most: int | None, pairs: Pairs, tenant: str
) -> Request:
    if not 1 <= len(documents) <= MAX_INPUTS:
        raise fail(pairs.document, f"must hold 1 to {MAX_INPUTS} texts, not {len(documents)}.")
    request = Request(
        kind="score" if card.kind == "rerank" else "embedding",
        model=card.name,
        inputs=(*queries, *documents),
        pairs=pairs,
        cut_at=cut_at(most, card),
        tenant=tenant,
        created_at=time.time(),
    )
    for at, text in enumerate(request.inputs):
        if not text:
            raise fail(request.place_of_input(at), "is empty.")
    return request


def rerank_reply(body: RerankRequest, request: Request, found: Vectors) -> dict[str, Any]:
    """Return the ranking. `request` is as it was screened: that is what its documents show."""
    scores = _scores(request, found)
    best = sorted(range(len(scores)), key=lambda at: -scores[at])[: body.top_n]
    results: list[dict[str, Any]] = [{"index": at, "relevance_score": scores[at]} for at in best]
    if body.return_documents is not False:
        for result in results:
            result["document"] = {"text": request.inputs[1 + result["index"]]}
    return {"id": new_id("rerank"), "model": request.model, "results": results, "usage": _usage(found)}


def score_reply(request: Request, found: Vectors) -> dict[str, Any]:
    """Return vLLM's list of scores."""
    scores = _scores(request, found)
    return {
        "id": new_id("score"),
        "object": "list",
        "created": int(request.created_at),
        "model": request.model,
        "data": [{"index": at, "object": "score", "score": score} for at, score in enumerate(scores)],
        "usage": _usage(found),
    }


def _scores(request: Request, found: Vectors) -> list[float]:
    """Return the score of each pair: a cross-encoder's own, or the cosine of the vectors of its texts."""
    vectors = np.frombuffer(b"".join(found.vectors), dtype="<f4").reshape(len(found.vectors), -1)
    if request.kind == "score":
        return [float(score) for score in vectors[:, 0]]
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    num_queries = request.pairs.num_queries if request.pairs is not None else 1
    return [float(score) for score in (vectors[:num_queries] * vectors[num_queries:]).sum(axis=1)]


def _usage(found: Vectors) -> dict[str, int]:
    return {"prompt_tokens": found.num_tokens, "total_tokens": found.num_tokens}
