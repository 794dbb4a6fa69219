"""How the page's files leave the edge: compressed where that helps, each coding with a tag of its own."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest

from gateway.edge.routes.page import Page
from tests.ring import Ring

pytestmark = pytest.mark.anyio

SCRIPT = b"export const words = 'many of them';\n" * 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small page."""
    (tmp_path / "js").mkdir()
    (tmp_path / "index.html").write_text('<title>P</title><script type="module" src="js/a.js"></script>' + " " * 300)
    (tmp_path / "js/a.js").write_bytes(SCRIPT)
    (tmp_path / "font.woff2").write_bytes(os.urandom(2000))
    return tmp_path


@pytest.fixture
async def page(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of that page that accepts nothing compressed unless told."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(Page(folder)), base_url="http://page", headers={"Accept-Encoding": "identity"}
    ) as client:
        yield client


ZIPPED = {"Accept-Encoding": "deflate, GZIP;q=0.5, br"}


async def test_text_comes_compressed_to_who_takes_it(page: httpx.AsyncClient) -> None:
    zipped, plain = await page.get("/js/a.js", headers=ZIPPED), await page.get("/js/a.js")
    assert zipped.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
    assert int(zipped.headers["content-length"]) < len(SCRIPT) / 5
    assert zipped.content == plain.content == SCRIPT
    for answer in (zipped, plain):
        assert answer.headers["vary"] == "Accept-Encoding"
        assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert zipped.headers["etag"] != plain.headers["etag"]


@pytest.mark.parametrize("accepted", ["", "identity", "br", "gzip;q=0", "gzip; q=0.000, *"])
async def test_who_does_not_take_gzip_gets_none(page: httpx.AsyncClient, accepted: str) -> None:
    answer = await page.get("/js/a.js", headers={"Accept-Encoding": accepted})
    assert "content-encoding" not in answer.headers and answer.content == SCRIPT


async def test_a_file_is_compressed_once_until_it_changes(page: httpx.AsyncClient, folder: Path) -> None:
    with patch("gateway.edge.page_files.gzip.compress", side_effect=gzip.compress) as compress:
        first = [await page.get("/js/a.js", headers=ZIPPED) for _ in range(3)]
        assert compress.call_count == 1
    (folder / "js/a.js").write_bytes(SCRIPT.replace(b"many", b"some"))
    os.utime(folder / "js/a.js", (0, 0))  # as packages do that are the same at every build
    second = await page.get("/js/a.js", headers=ZIPPED | {"If-None-Match": first[0].headers["etag"]})
    assert second.status_code == 200 and b"some of them" in second.content


async def test_what_is_compressed_already_comes_as_it_is(page: httpx.AsyncClient, folder: Path) -> None:
    answer = await page.get("/font.woff2", headers=ZIPPED)
    assert "content-encoding" not in answer.headers and "vary" not in answer.headers
    assert answer.content == (folder / "font.woff2").read_bytes()


async def test_a_tag_counts_for_its_own_coding(page: httpx.AsyncClient) -> None:
    tags = [(await page.get("/js/a.js", headers=headers)).headers["etag"] for headers in (ZIPPED, {})]
    for mine, other, headers in ((tags[0], tags[1], ZIPPED), (tags[1], tags[0], {})):
        same = await page.get("/js/a.js", headers={**headers, "If-None-Match": f'"x", W/{mine}'})
        assert (same.status_code, same.content) == (304, b"")
        assert (same.headers["etag"], same.headers["vary"]) == (mine, "Accept-Encoding")
        assert "content-encoding" not in same.headers
        assert (await page.get("/js/a.js", headers={**headers, "If-None-Match": other})).status_code == 200


async def test_a_part_is_one_of_the_file_as_it_is(page: httpx.AsyncClient) -> None:
    part = await page.get("/js/a.js", headers=ZIPPED | {"Range": "bytes=7-11"})
    assert (part.status_code, part.content) == (206, b"const")
    assert "content-encoding" not in part.headers
    assert part.headers["content-range"] == f"bytes 7-11/{len(SCRIPT)}"
    zipped = (await page.get("/js/a.js", headers=ZIPPED)).headers["etag"]
    whole = await page.get("/js/a.js", headers=ZIPPED | {"Range": "bytes=7-11", "If-Range": zipped})
    assert (whole.status_code, whole.content) == (200, SCRIPT)


async def test_the_document_names_files_that_last_until_one_of_them_changes(
    page: httpx.AsyncClient, folder: Path
) -> None:
    document = await page.get("/", headers=ZIPPED)
    assert document.headers["cache-control"] == "no-cache"
    named = document.text.partition('src="')[2].partition('"')[0]
    assert named.startswith("~") and named.endswith("/js/a.js")
    script = await page.get(f"/{named}", headers=ZIPPED)
    assert script.content == SCRIPT and script.headers["cache-control"] == "public, max-age=31536000, immutable"
    (folder / "js/a.js").write_bytes(b"export {};")
    tag = {"If-None-Match": document.headers["etag"], "If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"}
    script = await page.get(f"/{named}")
    assert (script.content, script.headers["cache-control"]) == (b"export {};", "no-cache"), "nothing else comes back"
    changed = await page.get("/", headers=ZIPPED | tag)
    assert changed.status_code == 200 and named not in changed.text
    (folder / "js/a.js").write_bytes(SCRIPT)
    assert named in (await page.get("/")).text, "the same files make the same version, wherever they lie"


async def test_a_part_of_the_document_is_not_one_of_the_file_on_the_disk(page: httpx.AsyncClient) -> None:
    whole = await page.get("/", headers={"Range": "bytes=0-9"})
    assert whole.status_code == 200 and "~" in whole.text


@pytest.mark.parametrize("path", ["js/a.js", "~0123456789abcdef/js/a.js", "~0/../js/a.js"])
async def test_under_any_other_name_a_file_is_asked_for_again(page: httpx.AsyncClient, path: str) -> None:
    await page.get("/")
    answer = await page.get(f"/{path}")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")


async def test_a_head_tells_what_a_get_would(ring: Ring) -> None:
    for headers in (ZIPPED, {"Accept-Encoding": "identity"}):
        get, head = [await ring.http.request(method, "/js/dom.js", headers=headers) for method in ("GET", "HEAD")]
        assert head.content == b""
        varying = {"date", "x-request-id"}
        assert {n: v for n, v in head.headers.items() if n not in varying} == {
            n: v for n, v in get.headers.items() if n not in varying
        }


async def test_answers_of_the_api_are_never_compressed(ring: Ring) -> None:
    for path in ("/v1/models", "/openapi.json", "/metrics", "/docs"):
        assert "content-encoding" not in (await ring.http.get(path, headers=ZIPPED)).headers


def test_the_document_asks_at_once_for_all_that_its_script_imports() -> None:
    imported: set[Path] = set()

    def follow(script: Path) -> None:
        for name in re.findall(r'^import .*"(\.[^"]+)";$', script.read_text(), re.MULTILINE):
            if (found := (script.parent / name).resolve()) not in imported:
                imported.add(found)
                follow(found)

    webchat = Path(str(files("gateway.webchat")))
    follow(webchat / "js/page.js")
    preloaded = re.findall(r'<link rel="modulepreload" href="(.+)">', (webchat / "index.html").read_text())
    assert sorted(preloaded) == sorted(str(path.relative_to(webchat)) for path in imported)
