"""Run a model replica: `python -m model_svc`."""

from __future__ import annotations

from model_svc.service import serve
from model_svc.settings import ModelSettings
from wire.flags import from_command_line
from wire.process import run

if __name__ == "__main__":
    run(serve, from_command_line(ModelSettings), name="model")
