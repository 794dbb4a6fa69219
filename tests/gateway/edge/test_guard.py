"""Who may call through a browser, and what the page's files look like to one."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.edge.asks import ASK, CHAT
from tests.ring import MakeRing, Ring

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "", "127.0.0.1.evil.example"])
async def test_a_host_that_could_be_rebound_is_refused(ring: Ring, host: str) -> None:
    for path in ("/", "/v1/models", "/health/live"):
        response = await ring.http.get(path, headers={"Host": host})
        assert response.status_code == 403, (host, path)
        assert response.json()["error"]["code"] == "forbidden"


async def test_addresses_names_without_a_dot_and_allowed_hosts_pass(make_ring: MakeRing) -> None:
    async with make_ring(allowed_hosts=("chat.example.com",)) as ring:
        for host in ("127.0.0.1:9", "[::1]:80", "localhost", "edge:8080", "x.localhost", "Chat.Example.com:443"):
            assert (await ring.http.get("/health/live", headers={"Host": host})).status_code == 200, host


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1", "http://["])
async def test_a_page_of_another_origin_may_not_call(ring: Ring, origin: str) -> None:
    response = await ring.http.post(CHAT, json=ASK, headers={"Origin": origin})
    assert response.status_code == 403
    assert ring.replica.requests == []


async def test_our_own_page_may_call(ring: Ring) -> None:
    assert (await ring.http.post(CHAT, json=ASK, headers={"Origin": ring.url})).status_code == 200


async def test_cross_origin_answers_are_off_unless_named(make_ring: MakeRing, ring: Ring) -> None:
    preflight = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    assert (await ring.http.options(CHAT, headers=preflight)).status_code == 403
    async with make_ring(cors_origins=("https://app.example",)) as other:
        answer = await other.http.options(CHAT, headers=preflight)
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert (await other.http.post(CHAT, json=ASK, headers={"Origin": "https://app.example"})).status_code == 200
        assert (await other.http.post(CHAT, json=ASK, headers={"Origin": "https://b.example"})).status_code == 403


async def test_openais_and_anthropics_clients_may_call_from_a_page_that_is_named(make_ring: MakeRing) -> None:
    own = "authorization, content-type, x-stainless-lang, anthropic-version, last-event-id"
    async with make_ring(cors_origins=("https://app.example",)) as ring:
        asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        answer = await ring.http.options(CHAT, headers={**asked, "Access-Control-Request-Headers": own})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-headers"] == own
        answer = await ring.http.post(CHAT, json=ASK, headers={"Origin": "https://app.example"})
        assert {"x-request-id", "request-id", "retry-after"} <= set(
            answer.headers["access-control-expose-headers"].split(", ")
        )


async def test_the_page_comes_with_a_strict_content_security_policy(ring: Ring) -> None:
    page = await ring.http.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/../edge/app.py",
        "/..%2fedge%2fapp.py",
        "/%2e%2e/edge/settings.py",
        "/js/..%2f..%2f..%2fpyproject.toml",
        "/__init__.py",
        "/.git",
        "//etc/passwd",
        "/%00",
    ],
)
async def test_files_outside_the_page_do_not_exist(ring: Ring, path: str) -> None:
    url = httpx.URL(ring.url).copy_with(raw_path=path.encode())
    response = await ring.http.get(url)
    assert response.status_code == 404, response.text[:200]
    assert "import" not in response.text
