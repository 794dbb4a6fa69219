"""Says on the terminal what is wrong, in the words of whoever found it out: a `[` in them is no mark-up."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape


def complain(who: str, error: object) -> None:
    """Print an error on standard error, behind the name of the command that it ends."""
    said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    Console(stderr=True).print(f"[bold red]{who}:[/] {escape(said)}", highlight=False, soft_wrap=True)
