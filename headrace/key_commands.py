"""`headrace keys`: the commands for the file of API keys. The work is in `headrace.keys`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.complain import fail

_KEY_FILE = typer.Option("--file", envvar="HEADRACE_API_KEYS", help="The file of keys.")
app = typer.Typer(help="API keys: make one, or show what stands in their file.", no_args_is_help=True)


@app.command("add")
def add(
    file: Annotated[Path, _KEY_FILE],
    tenant: Annotated[str, typer.Argument(help="Who owns conversations, cached blocks and bills of the key.")],
    name: Annotated[
        str | None, typer.Option("--id", help="Name of the key in logs; the tenant's if not given.")
    ] = None,
    requests_per_minute: Annotated[int, typer.Option(help="0: no limit.")] = 0,
    tokens_per_minute: Annotated[int, typer.Option(help="0: no limit.")] = 0,
    max_concurrent: Annotated[int, typer.Option(help="0: no limit.")] = 0,
    priority: Annotated[int, typer.Option(help="Of its requests; lower goes first.")] = 0,
    model: Annotated[list[str] | None, typer.Option(help="A model it may use; all if none is named.")] = None,
    operator: Annotated[bool, typer.Option("--operator", help="It may load and unload adapters.")] = False,
) -> None:
    """Make a key, add its digest to the file, and print the key."""
    from gateway.edge.tenancy.key_file import ApiKey, KeyFileError, hash_of
    from headrace import keys as command

    try:
        wanted = ApiKey(
            id=name or tenant,
            tenant=tenant,
            hash=hash_of(""),
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            max_concurrent=max_concurrent,
            priority=priority,
            models=tuple(model or ()),
            operator=operator,
        )
        typer.echo(command.add(file, wanted, Console(stderr=True)))
    except (KeyFileError, ValueError) as error:
        fail(str(error))


@app.command("list")
def show(file: Annotated[Path, _KEY_FILE]) -> None:
    """Show the keys of the file."""
    from gateway.edge.tenancy.key_file import KeyFileError
    from headrace import keys as command

    try:
        command.show(file, Console())
    except KeyFileError as error:
        fail(str(error))
