"""What the terminal chat does with keys, with servers that offer nothing to talk to, and with Ctrl-C."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from headrace import chat
from headrace.__main__ import app

EVENTS = (
    {"type": "response.output_text.delta", "delta": "Good day."},
    {"type": "response.completed", "response": {"id": "resp_1", "usage": {}}},
)


def client(handle: Callable[[httpx.Request], httpx.Response]) -> httpx.Client:
    return httpx.Client(base_url="http://server", transport=httpx.MockTransport(handle))


def test_the_choose_model_that_talks_is_chosen() -> None:
    data = [{"id": "ranks", "kind": "rerank"}, {"id": "vectors", "kind": "embedding"}, {"id": "talker", "kind": "chat"}]
    with client(lambda _: httpx.Response(200, json={"data": data})) as server:
        assert chat._choose_model(server, Console()) == "talker"


@pytest.mark.parametrize("url", ["http://server", "http://server/", "http://server/v1", "http://server/v1/"])
def test_a_base_url_of_openais_clients_will_do(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    def choose(server: httpx.Client, *_: object) -> str:
        raise chat.ChatError(f"asked at {server.base_url}")

    monkeypatch.setattr("headrace.chat._choose_model", choose)
    assert "asked at http://server\n" in CliRunner().invoke(app, ["chat", "--url", url]).output


def test_a_model_that_is_not_offered_is_told_with_those_that_are() -> None:
    data = [{"id": "vectors", "kind": "embedding"}, {"id": "talker", "kind": "chat"}, {"id": "other"}]
    with client(lambda _: httpx.Response(200, json={"data": data})) as server:
        assert chat._choose_model(server, Console(), "other") == "other"
        with pytest.raises(chat.ChatError, match="'nosuch' is not offered there; --model may be talker, other"):
            chat._choose_model(server, Console(), "nosuch")


def test_a_servers_words_are_shown_as_they_are_whatever_they_look_like(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "input[0]: [/INST] is no [red] of ours"
    words = iter(["hello"])

    def ask(*_: object, **__: object) -> str:
        try:
            return next(words)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("headrace.chat.Prompt.ask", ask)
    shown = io.StringIO()
    with client(lambda _: httpx.Response(400, json={"error": {"message": said}})) as server, pytest.raises(EOFError):
        chat._talk(server, Console(file=shown), {"model": "m"})
    assert shown.getvalue() == f"{said}\n"


def test_a_server_that_wants_a_key_says_so_where_nobody_can_be_asked() -> None:
    refused = httpx.Response(401, json={"error": {"message": "This server wants an API key."}})
    with client(lambda _: refused) as server, pytest.raises(chat.KeyWantedError, match="wants an API key"):
        chat._choose_model(server, Console(file=io.StringIO()))


def test_a_user_is_asked_for_the_key_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = iter(["wrong", " right "])
    monkeypatch.setattr("getpass.getpass", lambda *_, **__: next(keys))
    monkeypatch.setattr("rich.console.getpass", lambda *_, **__: next(keys), raising=False)

    def handle(request: httpx.Request) -> httpx.Response:
        if request.headers.get("authorization") != "Bearer right":
            return httpx.Response(401, json={"error": {"message": "no"}})
        return httpx.Response(200, json={"data": [{"id": "talker"}]})

    with client(handle) as server:
        assert chat._choose_model(server, Console(file=io.StringIO(), force_terminal=True)) == "talker"


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[]", b'{"data": [1]}', b'{"data": []}'])
def test_what_is_no_such_server_is_said_in_words(body: bytes) -> None:
    with client(lambda _: httpx.Response(200, content=body)) as server, pytest.raises(chat.ChatError, match="OpenAI"):
        chat._choose_model(server, Console())


def test_only_what_was_chosen_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(chat, "_choose_model", lambda _client, _console, wanted: wanted)
    monkeypatch.setattr(chat, "_talk", lambda _client, _console, options: asked.append(options))
    for chosen in ([], ["--temperature", "0"]):
        assert CliRunner().invoke(app, ["chat", "--model", "talker", *chosen]).exit_code == 0
    assert asked == [{"model": "talker"}, {"model": "talker", "temperature": 0.0}]


def test_ctrl_c_stops_an_answer_and_the_chat_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[dict[str, object]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        if len(bodies) == 2:
            raise KeyboardInterrupt
        lines = "".join(f"data: {json.dumps(event)}\n\n" for event in EVENTS)
        return httpx.Response(200, stream=httpx.ByteStream(lines.encode()))

    monkeypatch.setattr("sys.stdin", io.StringIO("One\nTwo\nThree\n"))
    shown = io.StringIO()
    with client(handle) as server, pytest.raises(EOFError):
        chat._talk(server, Console(file=shown), {"model": "talker"})
    assert [body["input"] for body in bodies] == ["One", "Two", "Three"]
    assert [body["previous_response_id"] for body in bodies] == [None, "resp_1", "resp_1"]
    assert "stopped" in shown.getvalue()
