"""Run the tokenizer desk: `python -m tokenizer_svc`."""

from __future__ import annotations

from tokenizer_svc.service import serve
from tokenizer_svc.settings import TokenizerSettings
from wire.flags import from_command_line
from wire.process import run

if __name__ == "__main__":
    run(serve, from_command_line(TokenizerSettings), name="tokenizer")
