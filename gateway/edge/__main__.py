"""Run the edge: `python -m gateway.edge`."""

from __future__ import annotations

from gateway.edge.service import serve
from gateway.edge.settings import EdgeSettings
from wire.flags import from_command_line
from wire.process import run

if __name__ == "__main__":
    run(serve, from_command_line(EdgeSettings), name="edge")
