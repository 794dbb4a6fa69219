"""How far a download is: a callback for the code that fetches, a rich progress bar for the person who waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

# (what is being done, bytes done, bytes in all)
Report = Callable[[str, int, int], None]


def silent(_what: str, _done: int, _total: int) -> None:
    """Report nothing."""


@contextmanager
def progress_bar(console: Console) -> Iterator[Report]:
    """Show a progress bar while the block runs; one line per thing done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield report
