"""`headrace chat`: a streaming chat in the terminal; the server keeps the conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
from rich.console import Console
from rich.markup import escape
from rich.prompt import Prompt


class ChatError(RuntimeError):
    """What the server said went wrong, in its own words."""


class KeyWantedError(ChatError):
    """The server wants a key, or another one."""


def _lines_of_events(reply: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield the JSON of each event. Lines end at LF or CRLF only: httpx's own reader would also split at U+2028."""
    rest = b""
    for piece in reply.iter_raw():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removesuffix(b"\r")
            if data.startswith(b"data:") and data[5:].strip() != b"[DONE]":
                yield json.loads(data[5:])


def raise_for_error(reply: httpx.Response) -> None:
    """Raise ChatError with what the server said, if it refused."""
    if reply.status_code < 400:
        return
    reply.read()
    try:
        message = str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"HTTP {reply.status_code}"
    raise (KeyWantedError if reply.status_code == 401 else ChatError)(message)


def stream_answer(client: httpx.Client, body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield ("text" | "reasoning", piece) as they come and at the end ("done", response object). Raises ChatError."""
    with client.stream("POST", "/v1/responses", json={**body, "stream": True}) as reply:
        raise_for_error(reply)
        for event in _lines_of_events(reply):
            kind = event.get("type", "")
            if kind == "response.output_text.delta":
                yield "text", event["delta"]
            elif kind == "response.reasoning_text.delta":
                yield "reasoning", event["delta"]
            elif kind in ("response.completed", "response.incomplete"):
                yield "done", event["response"]
            elif kind in ("response.failed", "error") or "error" in event:
                raise ChatError(str(event.get("error") or event.get("response", {}).get("error") or event))


def _bill(response: dict[str, Any]) -> str:
    bill = (response.get("usage") or {}).get("headrace") or {}
    return (
        f"{bill.get('completion_tokens', 0)} tokens, {bill.get('cached_tokens', 0)} of "
        f"{bill.get('prompt_tokens', 0)} cached, first after {bill.get('ttft_ms', 0):.0f} ms, "
        f"{bill.get('tokens_per_second', 0):.1f} tok/s"
    )


def _choose_model(client: httpx.Client, console: Console, wanted: str | None = None) -> str:
    """Return the model that is wanted, or the first that talks; a server with keys is shown the user's.

    Raises ChatError where there is none.
    """
    while True:
        reply = client.get("/v1/models")
        try:
            raise_for_error(reply)
        except KeyWantedError:
            if not console.is_terminal:
                raise
            key = Prompt.ask("This server asks for an API key", password=True, console=console)
            client.headers["authorization"] = f"Bearer {key.strip()}"
            continue
        try:
            offered = [str(model["id"]) for model in reply.json()["data"] if model.get("kind", "chat") == "chat"]
        except (ValueError, KeyError, TypeError, AttributeError):
            offered = []
        if not offered:
            raise ChatError("no model that talks is offered there; is this an OpenAI-style server?")
        if wanted is not None and wanted not in offered:
            raise ChatError(f"{wanted!r} is not offered there; --model may be {', '.join(offered)}")
        return wanted or offered[0]


def _turn(client: httpx.Client, console: Console, body: dict[str, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {}
    for kind, piece in stream_answer(client, body):
        if kind == "done":
            response = piece
        else:
            style = "dim italic" if kind == "reasoning" else None
            console.print(piece, end="", style=style, markup=False, highlight=False)
    console.print(f"\n[dim]{_bill(response)}[/]\n")
    return response


def _talk(client: httpx.Client, console: Console, options: dict[str, Any]) -> None:
    """Ask and answer until the user ends it (EOFError, KeyboardInterrupt)."""
    previous: str | None = None
    while True:
        text = Prompt.ask("[bold cyan]you[/]", console=console)
        if not text.strip():
            continue
        body = {**options, "input": text, "store": True, "previous_response_id": previous}
        try:
            previous = _turn(client, console, body).get("id", previous)
        except ChatError as error:
            console.print(str(error), style="red", markup=False, highlight=False)
        except KeyboardInterrupt:
            console.print("\n[dim]stopped; the conversation goes on without this turn (Ctrl-D ends it)[/]\n")


def main(
    url: str, *, model: str | None, effort: str | None, temperature: float | None, api_key: str | None = None
) -> int:
    """Chat until Ctrl-D; returns the exit code."""
    console = Console()
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Timeout(600.0, connect=5.0)
    url = url.rstrip("/").removesuffix("/v1")  # as clients of OpenAI's API have it
    with httpx.Client(base_url=url, timeout=limits, trust_env=False, headers=headers) as client:
        try:
            options: dict[str, Any] = {"model": _choose_model(client, console, model)}
            options |= {"temperature": temperature} if temperature is not None else {}
            options |= {"reasoning": {"effort": effort}} if effort else {}
            console.print(
                f"[bold]{escape(options['model'])}[/] at {escape(url)}  [dim](Ctrl-C stops an answer, Ctrl-D ends)[/]\n"
            )
            _talk(client, console, options)
        except (EOFError, KeyboardInterrupt):
            console.print()
        except ChatError as error:
            hint = " (--api-key)" if isinstance(error, KeyWantedError) else ""
            console.print(f"[red]{escape(str(error))}[/]{hint}", highlight=False)
            return 1
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = escape(str(error))
            console.print(
                f"[red]No server answers at {escape(url)}[/] ({why}). `headrace up` starts one.", highlight=False
            )
            return 1
    return 0
