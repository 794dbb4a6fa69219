"""`headrace ledger`: prints what requests cost, one JSON object a line, or summed up by tenant and model."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import msgspec
from rich.console import Console

from headrace import listing
from headrace.complain import complain
from headrace.settings import UpSettings
from wire.bus import Bus
from wire.bus.embedded import embedded_server, running_url
from wire.errors import HeadraceError, StartError
from wire.ledger import Entry, Ledger
from wire.settings import SettingsError

_ID = re.compile(r"-|\d{1,19}(-\d{1,19})?")
_COUNTS = ("prompt_tokens", "cached_tokens", "fetched_tokens", "reasoning_tokens", "completion_tokens", "energy_j")
_NAMES = tuple(name.removesuffix("_tokens").replace("_j", " J") for name in _COUNTS)


def check_place(after: str) -> None:
    """Raise SettingsError for what is no id of an entry."""
    if not _ID.fullmatch(after):
        raise SettingsError(f"--after: {after!r} is no id of an entry; they read 1790000000000-0")


async def run(settings: UpSettings, *, tenant: str | None, after: str, sums: bool, console: Console) -> None:
    """Read the ledger of the bus that is set, or of the laptop's own, which is started for it if it does not run."""
    async with AsyncExitStack() as stack:
        url = settings.redis_url or running_url(settings.state_dir) or ""
        if not url and not (Path(settings.state_dir) / "bus").is_dir():
            sys.stderr.write(f"nothing has run with its state in {settings.state_dir} yet: the ledger is empty\n")
            return
        url = url or await stack.enter_async_context(embedded_server(settings.state_dir))
        bus = await stack.enter_async_context(Bus.open(url))
        totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0] * (1 + len(_COUNTS)))
        async for entry_id, entry in Ledger(bus.route).read(after):
            if tenant is not None and entry.tenant != tenant:
                continue
            if sums:
                total = totals[entry.tenant, entry.model]
                for at, count in enumerate((1, *(getattr(entry, name) for name in _COUNTS))):
                    total[at] += count
            else:
                sys.stdout.write(_line(entry_id, entry))
        if sums:
            listing.show(console, ("tenant", "model", "requests", *_NAMES), _rows(totals))


def _line(entry_id: str, entry: Entry) -> str:
    return msgspec.json.encode({"id": entry_id, **msgspec.to_builtins(entry)}).decode() + "\n"


def _rows(totals: dict[tuple[str, str], list[float]]) -> list[list[str]]:
    return [
        [tenant or "-", model, *(f"{count:.10g}" for count in counts)]
        for (tenant, model), counts in sorted(totals.items())
    ]


def main(settings: UpSettings, *, tenant: str | None, after: str, sums: bool) -> int:
    """Print the ledger; returns the exit code."""

    async def read() -> None:
        await run(settings, tenant=tenant, after=after, sums=sums, console=Console())

    try:
        anyio.run(read)
    except (StartError, HeadraceError) as error:
        complain("headrace ledger", error)
        return 1
    return 0
