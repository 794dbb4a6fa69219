"""DeepSeek V3 and R1: calls between full-width tags. V3.1 leaves out the kind, and the fence round the arguments."""

from __future__ import annotations

import re

from gateway.postprocess.tools.headed import HeadedToolParser

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


class DeepSeekParser(HeadedToolParser):
    """`function<sep>name`, a fence of JSON; or `name<sep>` and the JSON."""

    opens = (CALLS_BEGIN, CALL_BEGIN)
    closes = (CALL_END, CALLS_END)
    inner = (SEPARATOR,)
    head = re.compile(
        rf"function{SEPARATOR}\s*([\w.-]+)\s*(?:```(?:json)?\s*)?|([\w.-]+){SEPARATOR}\s*(?:```(?:json)?\s*)?"
    )
