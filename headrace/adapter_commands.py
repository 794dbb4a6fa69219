"""`headrace adapter`: the commands for LoRA adapters of a running server. The work is in `headrace.adapters`."""

from __future__ import annotations

from typing import Annotated

import typer

_URL = typer.Option("--url", help="Server to talk to.")
_KEY = typer.Option("--api-key", help="An operator's key, if the server has keys.")
app = typer.Typer(help="LoRA adapters of a running server: load, unload or list them.", no_args_is_help=True)


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="What requests call it.")],
    path: Annotated[str, typer.Argument(help="Its directory, seen from the server's adapter_dir.")],
    model: Annotated[str | None, typer.Option(help="Its model; the first that generates if not given.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Take the place of one of this name.")] = False,
    url: Annotated[str, _URL] = "http://127.0.0.1:8000",
    api_key: Annotated[str | None, _KEY] = None,
) -> None:
    """Load an adapter in all replicas; it is served when this ends."""
    from headrace import adapters as command

    done = command.main(url, api_key, lambda client: command.add(client, name, path, model=model, replace=replace))
    raise typer.Exit(done)


@app.command("remove")
def remove(
    name: Annotated[str, typer.Argument(help="What requests call it.")],
    url: Annotated[str, _URL] = "http://127.0.0.1:8000",
    api_key: Annotated[str | None, _KEY] = None,
) -> None:
    """Serve an adapter no longer; answers that it has begun go on to their end."""
    from headrace import adapters as command

    raise typer.Exit(command.main(url, api_key, lambda client: command.remove(client, name)))


@app.command("list")
def show(url: Annotated[str, _URL] = "http://127.0.0.1:8000", api_key: Annotated[str | None, _KEY] = None) -> None:
    """Show the adapters of a server, each with its model."""
    from headrace import adapters as command

    raise typer.Exit(command.main(url, api_key, command.show))
