"""`headrace chat`: a streaming chat in the terminal; the server keeps the conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
from rich.console import Console
from rich.prompt import Prompt


class ChatError(RuntimeError):
    """What the server said went wrong, in its own words."""


def _lines_of_events(reply: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield the JSON of each event. Lines end at LF or CRLF only: httpx's own reader would also split at U+2028."""
    rest = b""
    for piece in reply.iter_raw():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removesuffix(b"\r")
            if data.startswith(b"data:") and data[5:].strip() != b"[DONE]":
                yield json.loads(data[5:])


def _raise_for_error(reply: httpx.Response) -> None:
    if reply.status_code < 400:
        return
    reply.read()
    try:
        raise ChatError(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        raise ChatError(f"HTTP {reply.status_code}") from None


def stream_answer(client: httpx.Client, body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield ("text" | "reasoning", piece) as they come and at the end ("done", response object). Raises ChatError."""
    with client.stream("POST", "/v1/responses", json={**body, "stream": True}) as reply:
        _raise_for_error(reply)
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


def main(url: str, *, model: str | None, effort: str | None, temperature: float | None) -> int:
    """Chat until Ctrl-D; returns the exit code."""
    console = Console()
    with httpx.Client(base_url=url, timeout=httpx.Timeout(600.0, connect=5.0), trust_env=False) as client:
        try:
            model = model or client.get("/v1/models").json()["data"][0]["id"]
            previous: str | None = None
            console.print(f"[bold]{model}[/] at {url}  [dim](Ctrl-D ends)[/]\n")
            while True:
                text = Prompt.ask("[bold cyan]you[/]", console=console)
                if not text.strip():
                    continue
                body = {"model": model, "input": text, "store": True, "previous_response_id": previous}
                body |= {"temperature": temperature} if temperature is not None else {}
                body |= {"reasoning": {"effort": effort}} if effort else {}
                try:
                    previous = _turn(client, console, body).get("id", previous)
                except ChatError as error:
                    console.print(f"[red]{error}[/]", highlight=False)
        except (EOFError, KeyboardInterrupt):
            console.print()
            return 0
        except httpx.HTTPError as error:
            console.print(f"[red]No server answers at {url}[/] ({error}). `headrace up` starts one.", highlight=False)
            return 1
