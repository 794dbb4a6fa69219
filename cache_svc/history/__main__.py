"""Run the history desk: `python -m cache_svc.history`."""

from __future__ import annotations

from cache_svc.history.service import serve
from cache_svc.history.settings import HistorySettings
from wire.flags import from_command_line
from wire.process import run

if __name__ == "__main__":
    run(serve, from_command_line(HistorySettings), name="history")
