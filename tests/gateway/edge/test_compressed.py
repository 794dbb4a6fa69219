"""Request bodies that come compressed are read, held to the limit, and never end in a fault of ours."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from tests.gateway.edge.asks import ASK, CHAT, still_serves
from tests.ring import MakeRing, Ring

pytestmark = pytest.mark.anyio

BODY = json.dumps(ASK).encode()
HALF = len(BODY) // 2


def packed(data: bytes) -> bytes:
    """Compress without the time of day: it would be in the names of tests, which both lanes must read alike."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    ("encoding", "raw"),
    [
        ("gzip", packed(BODY)),
        ("x-gzip", packed(BODY)),
        ("GZIP", packed(BODY[:HALF]) + packed(BODY[HALF:])),
        ("deflate", zlib.compress(BODY)),
        ("identity", BODY),
        ("", BODY),
    ],
)
async def test_a_compressed_body_is_read(ring: Ring, encoding: str, raw: bytes) -> None:
    response = await ring.http.post(CHAT, content=raw, headers={"Content-Encoding": encoding})
    assert response.status_code == 200, response.text
    assert ring.replica.requests[-1].request.messages[0].content == "hi"


@pytest.mark.parametrize(
    ("encoding", "raw"),
    [
        ("gzip", BODY),
        ("gzip", packed(BODY)[:-9]),
        ("gzip", packed(BODY) + b"more"),
        ("deflate", zlib.compress(BODY) + b"more"),
        ("deflate", packed(BODY)),
    ],
)
async def test_what_is_not_compressed_that_way_is_refused(ring: Ring, encoding: str, raw: bytes) -> None:
    response = await ring.http.post(CHAT, content=raw, headers={"Content-Encoding": encoding})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == f"The request body is not valid {encoding}."
    await still_serves(ring)


async def test_an_empty_compressed_body_is_an_empty_body(ring: Ring) -> None:
    response = await ring.http.post(CHAT, content=b"", headers={"Content-Encoding": "gzip"})
    assert "is empty" in response.json()["error"]["message"]


async def test_another_encoding_is_415_and_names_those_that_are_read(ring: Ring) -> None:
    for encoding in ("br", "zstd", "gzip, gzip"):
        response = await ring.http.post(CHAT, content=BODY, headers={"Content-Encoding": encoding})
        assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_encoding")
        assert response.headers["Accept-Encoding"] == "gzip, deflate"


async def test_a_short_body_that_expands_beyond_the_limit_is_413(make_ring: MakeRing) -> None:
    async with make_ring(max_body_bytes=100_000) as ring:
        bomb = packed(b" " * 50_000_000)
        assert len(bomb) < 100_000
        for raw in (bomb, packed(b" " * 60_000) * 2):
            response = await ring.http.post(CHAT, content=raw, headers={"Content-Encoding": "gzip"})
            assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
        await still_serves(ring)
