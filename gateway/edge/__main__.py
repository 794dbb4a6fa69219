"""Run the edge: `python -m gateway.edge`."""

from __future__ import annotations

from gateway.edge.service import serve
from gateway.edge.settings import EdgeSettings
from wire.process import run
from wire.settings import from_command_line

if __name__ == "__main__":
    run(serve, from_command_line(EdgeSettings), name="edge")
