"""`headrace adapter`: loads and unloads LoRA adapters of a running server, and lists those that it has."""

from __future__ import annotations

import sys
from collections.abc import Callable

import httpx
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.chat import ChatError, raise_for_error
from headrace.complain import complain

_PATIENCE_S = 330.0  # the server gives its replicas a little less


def add(client: httpx.Client, name: str, path: str, *, model: str | None, replace: bool) -> str:
    """Load an adapter; returns what the server says. Raises ChatError."""
    body = {"lora_name": name, "lora_path": path, "load_inplace": replace, **({"model": model} if model else {})}
    return _said(client.post("/v1/load_lora_adapter", json=body))


def remove(client: httpx.Client, name: str) -> str:
    """Unload an adapter; returns what the server says. Raises ChatError."""
    return _said(client.post("/v1/unload_lora_adapter", json={"lora_name": name}))


def table(client: httpx.Client) -> Table:
    """Return the server's adapters, each with its model. Raises ChatError."""
    reply = client.get("/v1/models")
    raise_for_error(reply)
    found = Table("adapter", "model")
    for column in found.columns:
        column.overflow = "fold"  # a narrow terminal, or none, loses no letter of a name
    for model in reply.json()["data"]:
        if model.get("parent"):
            found.add_row(escape(model["id"]), escape(model["parent"]))
    return found


def _said(reply: httpx.Response) -> str:
    raise_for_error(reply)
    return reply.text


def main(url: str, api_key: str | None, work: Callable[[httpx.Client], str | Table]) -> int:
    """Do it at a server and print what comes of it; returns the exit code."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    url = url.rstrip("/").removesuffix("/v1")
    timeout = httpx.Timeout(_PATIENCE_S, connect=5.0)
    with httpx.Client(base_url=url, timeout=timeout, trust_env=False, headers=headers) as client:
        try:
            done = work(client)
        except ChatError as error:
            complain("headrace adapter", error)
            return 1
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            complain("headrace adapter", f"no server answers at {url} ({error}); `headrace up` starts one")
            return 1
    if isinstance(done, str):
        sys.stdout.write(f"{done}\n")
    else:
        Console().print(done)
    return 0
