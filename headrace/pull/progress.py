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
    """Show a progress bar from the first report on until the block ends; one line per thing done."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=console)
    tasks: dict[str, TaskID] = {}

    def report(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = progress.add_task(what, total=total)
            progress.start()
        progress.update(tasks[what], completed=done, total=total)

    try:
        yield report
    finally:
        if tasks:  # one that never began would leave an empty line
            progress.stop()
