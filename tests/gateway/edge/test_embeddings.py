"""POST /v1/embeddings through the ring: real desks, a real replica of a tiny BERT, OpenAI's own client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import openai
import pytest
import torch
from tokenizers import Tokenizer
from transformers import BertModel

from tests.ring import MODEL, MakeRing, Ring
from tests.tiny_bert import MAX_LEN
from tests.tiny_bert import MODEL as EMBEDDER

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ring(make_ring: MakeRing, tiny_bert: Path) -> AsyncIterator[Ring]:
    async with make_ring(encoders=[tiny_bert]) as running:
        yield running


def wanted(path: Path, ids: list[int]) -> np.ndarray:
    """Return transformers' vector of an input."""
    with torch.inference_mode():
        state = BertModel.from_pretrained(path)(torch.tensor([ids])).last_hidden_state[0].mean(0)
    vector: np.ndarray = (state / state.norm()).numpy()
    return vector


def encode(path: Path, text: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids: list[int] = tokenizer.encode(text).ids
    return ids


async def test_texts_and_token_ids_get_the_vectors_of_transformers(ring: Ring, tiny_bert: Path) -> None:
    texts = ["the sky is blue", "Deep SEAS.", "a " * 15]
    async with ring.openai() as client:
        found = await client.embeddings.create(model=EMBEDDER, input=texts)
        by_ids = await client.embeddings.create(model=EMBEDDER, input=[encode(tiny_bert, text) for text in texts])
        one = await client.embeddings.create(model=EMBEDDER, input=texts[0], encoding_format="float")
    ids = [encode(tiny_bert, text) for text in texts]
    for index, item in enumerate(found.data):
        assert (item.index, item.object) == (index, "embedding")
        np.testing.assert_allclose(item.embedding, wanted(tiny_bert, ids[index]), atol=1e-5)
        np.testing.assert_allclose(by_ids.data[index].embedding, item.embedding, atol=1e-6)
    np.testing.assert_allclose(one.data[0].embedding, found.data[0].embedding, atol=1e-6)
    assert found.model == EMBEDDER
    assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, ids))
    assert await ring.metric("headrace_inflight_requests") == 0


async def test_many_inputs_come_back_in_their_order(ring: Ring, tiny_bert: Path) -> None:
    inputs = [[2, 5 + n % 9, *[9] * (n % 17), 3] for n in range(700)]
    async with ring.openai() as client:
        found = await client.embeddings.create(model=EMBEDDER, input=inputs, dimensions=5)
    assert [item.index for item in found.data] == list(range(700))
    for n in (0, 16, 350, 699):
        first = wanted(tiny_bert, inputs[n])[:5]
        np.testing.assert_allclose(found.data[n].embedding, first / np.linalg.norm(first), atol=1e-5)


async def test_an_input_that_is_too_long_is_cut_at_its_end_if_that_is_asked_for(ring: Ring, tiny_bert: Path) -> None:
    start, *body, end = encode(tiny_bert, "deep seas . " * 12)
    inputs = ["deep seas . " * 12, [start, *body, end], "the sky"]
    async with ring.openai() as client:
        for most, kept in ((-1, MAX_LEN), (5, 5)):
            asked = {"truncate_prompt_tokens": most}
            found = await client.embeddings.create(model=EMBEDDER, input=inputs, extra_body=asked)
            ids = [[start, *body[: kept - 2], end], [start, *body[: kept - 1]], encode(tiny_bert, "the sky")]
            for item, wanted_ids in zip(found.data, ids, strict=True):
                np.testing.assert_allclose(item.embedding, wanted(tiny_bert, wanted_ids), atol=1e-5)
            assert found.usage.prompt_tokens == 2 * kept + 4


async def test_a_control_token_that_a_caller_typed_is_text(ring: Ring, tiny_bert: Path) -> None:
    async with ring.openai() as client:
        typed = await client.embeddings.create(model=EMBEDDER, input="a [SEP] b")
        spelled = await client.embeddings.create(model=EMBEDDER, input="a [ sep ] b")
    np.testing.assert_allclose(typed.data[0].embedding, spelled.data[0].embedding, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"input": ""}, "input", "is empty"),
        ({"input": []}, "input", "1 to 2048 inputs"),
        ({"input": ["a"] * 2049}, "input", "1 to 2048 inputs, not 2049"),
        ({"input": ["a", ""]}, "input[1]", "is empty"),
        ({"input": [["a"]]}, "input[0]", "a string or an array of token ids"),
        ({"input": [1, -2]}, "input[0]", "a string or an array of token ids"),
        ({"input": [99]}, "input", "token ids must lie in 0 .. 18"),
        ({"input": "a", "dimensions": 0}, "dimensions", "at least 1"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "hex"),
        ({"input": "a", "truncate_prompt_tokens": 25}, "truncate_prompt_tokens", "between 1 and 24, or be -1, not 25"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "not 0"),
        ({"input": "a b", "truncate_prompt_tokens": 2}, "truncate_prompt_tokens", "no room"),
        ({"input": ["a", "b " * 30]}, "input", f"input[1] has 32 tokens; {EMBEDDER} takes {MAX_LEN} at most"),
    ],
)
async def test_a_wrong_body_is_refused_by_field(ring: Ring, body: dict[str, Any], param: str, message: str) -> None:
    reply = await ring.http.post("/v1/embeddings", json={"model": EMBEDDER, **body})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert message in reply.json()["error"]["message"]


async def test_each_kind_of_model_is_asked_on_its_own_route(ring: Ring) -> None:
    async with ring.openai() as client:
        with pytest.raises(openai.NotFoundError, match="generates text"):
            await client.embeddings.create(model=MODEL, input="a")
        with pytest.raises(openai.NotFoundError, match="/v1/embeddings"):
            await client.chat.completions.create(model=EMBEDDER, messages=[{"role": "user", "content": "a"}])
        with pytest.raises(openai.NotFoundError, match="'nobody' is not served"):
            await client.embeddings.create(model="nobody", input="a")
        assert {model.id async for model in client.models.list()} == {MODEL, EMBEDDER}


async def test_a_client_that_leaves_ends_its_request_only(ring: Ring, tiny_bert: Path) -> None:
    body = {"model": EMBEDDER, "input": [[2, *[9] * 20, 3]] * 2000}
    with anyio.move_on_after(0.05):
        await ring.http.post("/v1/embeddings", json=body)
    async with ring.openai() as client:
        found = await client.embeddings.create(model=EMBEDDER, input=[[2, 5, 3]])
    np.testing.assert_allclose(found.data[0].embedding, wanted(tiny_bert, [2, 5, 3]), atol=1e-5)
    await ring.until_idle()
