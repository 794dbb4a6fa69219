"""Seed-OSS: as Qwen3-Coder, between tags of its own."""

from __future__ import annotations

from gateway.postprocess.tools.qwen3_coder import Qwen3CoderParser


class SeedOssParser(Qwen3CoderParser):
    """The outer tags are control tokens."""

    opens = ("<seed:tool_call>", "<function=")
    closes = ("</seed:tool_call>",)
