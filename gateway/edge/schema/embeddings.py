"""POST /v1/embeddings: OpenAI's body -> wire.messages.Request, and vectors -> OpenAI's list."""

from __future__ import annotations

import sys
import time
from array import array
from base64 import b64encode
from typing import Any, Literal

import msgspec

from gateway.edge.desks.embeddings import Vectors
from gateway.edge.schema.answers import Answer
from gateway.edge.schema.kinds import must_be
from gateway.edge.schema.sampling import fail
from wire.messages import Request
from wire.model_card import ModelCard

MAX_INPUTS = 2048


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """The body; `user` is ignored. `truncate_prompt_tokens` is vLLM's: -1 keeps what the model takes."""

    model: str
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    truncate_prompt_tokens: int | None = None
    user: str | None = None


class Embedding(Answer):
    """The vector of one input: numbers, or their base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Answer):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Answer):
    """The answer of /v1/embeddings."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


def translate_embeddings(body: EmbeddingRequest, card: ModelCard, *, tenant: str = "") -> Request:
    """Check the body and return the request. Raises InvalidRequestError naming the field."""
    if body.dimensions is not None and body.dimensions < 1:
        raise fail("dimensions", f"must be at least 1, not {body.dimensions}.")
    return Request(
        kind="embedding",
        model=card.name,
        inputs=_inputs(body.input),
        dimensions=body.dimensions,
        cut_at=cut_at(body.truncate_prompt_tokens, card),
        tenant=tenant,
        created_at=time.time(),
    )


def cut_at(wanted: int | None, card: ModelCard) -> int | None:
    """Return what a request says of longer inputs. Raises InvalidRequestError."""
    if wanted is not None and wanted != -1 and not 1 <= wanted <= card.max_model_len:
        raise fail("truncate_prompt_tokens", f"must lie between 1 and {card.max_model_len}, or be -1, not {wanted}.")
    return 0 if wanted == -1 else wanted


def _inputs(given: str | list[Any]) -> tuple[str | tuple[int, ...], ...]:
    """Return the inputs; a bare list of numbers is one input in token ids."""
    if isinstance(given, list) and given and all(type(item) is int for item in given):
        given = [given]
    items = [given] if isinstance(given, str) else given
    if not 1 <= len(items) <= MAX_INPUTS:
        raise fail("input", f"must hold 1 to {MAX_INPUTS} inputs, not {len(items)}.")
    return tuple(_input(item, "input" if isinstance(given, str) else f"input[{at}]") for at, item in enumerate(items))


def _input(item: Any, place: str) -> str | tuple[int, ...]:
    if isinstance(item, str) and item:
        return item
    if isinstance(item, list) and item and all(type(token_id) is int and 0 <= token_id < 2**31 for token_id in item):
        return tuple(item)
    if item in ("", []):
        raise fail(place, "is empty.")
    raise must_be(place, "a string or an array of token ids", item)


def embeddings_reply(body: EmbeddingRequest, card: ModelCard, found: Vectors) -> dict[str, Any]:
    """Return OpenAI's list of embeddings."""
    encode = _base64 if body.encoding_format == "base64" else _floats
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": encode(vector)}
            for index, vector in enumerate(found.vectors)
        ],
        "model": card.name,
        "usage": {"prompt_tokens": found.num_tokens, "total_tokens": found.num_tokens},
    }


def _base64(vector: bytes) -> str:
    return b64encode(vector).decode()


def _floats(vector: bytes) -> list[float]:
    values = array("f", vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
