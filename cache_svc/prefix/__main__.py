"""Run the prefix desk: `python -m cache_svc.prefix`."""

from __future__ import annotations

from cache_svc.prefix.service import serve
from cache_svc.prefix.settings import PrefixSettings
from wire.flags import from_command_line
from wire.process import run

if __name__ == "__main__":
    run(serve, from_command_line(PrefixSettings), name="prefix")
