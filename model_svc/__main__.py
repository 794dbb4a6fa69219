"""Run a model replica: `python -m model_svc`."""

from __future__ import annotations

from model_svc.service import serve
from model_svc.settings import ModelSettings
from wire.process import run
from wire.settings import from_command_line

if __name__ == "__main__":
    run(serve, from_command_line(ModelSettings), name="model")
