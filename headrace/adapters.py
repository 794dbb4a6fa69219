"""`headrace adapter`: loads and unloads LoRA adapters of a running server, and lists those that it has."""

from __future__ import annotations

import sys
from collections.abc import Callable

import httpx
from rich.console import Console

from headrace import listing
from headrace.chat import ChatError, raise_for_error
from headrace.complain import complain

_PATIENCE_S = 330.0  # the server gives its replicas a little less


def add(client: httpx.Client, name: str, path: str, *, model: str | None, replace: bool) -> None:
    """Load an adapter and print what the server says. Raises ChatError."""
    body = {"lora_name": name, "lora_path": path, "load_inplace": replace, **({"model": model} if model else {})}
    _tell(client.post("/v1/load_lora_adapter", json=body))


def remove(client: httpx.Client, name: str) -> None:
    """Unload an adapter and print what the server says. Raises ChatError."""
    _tell(client.post("/v1/unload_lora_adapter", json={"lora_name": name}))


def show(client: httpx.Client) -> None:
    """List the server's adapters, each with its model. Raises ChatError."""
    reply = client.get("/v1/models")
    raise_for_error(reply)
    rows = [(model["id"], model["parent"]) for model in reply.json()["data"] if model.get("parent")]
    listing.show(Console(), ("adapter", "model"), rows)


def _tell(reply: httpx.Response) -> None:
    raise_for_error(reply)
    sys.stdout.write(f"{reply.text}\n")


def main(url: str, api_key: str | None, work: Callable[[httpx.Client], None]) -> int:
    """Do it at a server; returns the exit code."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    url = url.rstrip("/").removesuffix("/v1")
    timeout = httpx.Timeout(_PATIENCE_S, connect=5.0)
    with httpx.Client(base_url=url, timeout=timeout, trust_env=False, headers=headers) as client:
        try:
            work(client)
        except ChatError as error:
            complain("headrace adapter", error)
            return 1
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            complain("headrace adapter", f"no server answers at {url} ({error}); `headrace up` starts one")
            return 1
    return 0
