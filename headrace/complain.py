"""Says on the terminal what is wrong, in the words of whoever found it out: a `[` in them is no mark-up."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape


def complain(who: str, error: object) -> None:
    """Print an error on standard error, behind the name of the command that it ends."""
    said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    Console(stderr=True).print(f"[bold red]{who}:[/] {escape(said)}", highlight=False, soft_wrap=True)


def fail(error: object, code: int = 2) -> NoReturn:
    """Print why a command cannot do what it was asked, and end it with an exit code."""
    complain("headrace", error)
    raise typer.Exit(code)
