"""The free text of a custom tool comes out of the arguments that a model writes, whatever way these are cut."""

from __future__ import annotations

import json

import pytest

from gateway.postprocess.tools.free_input import FreeInput

TEXT = 'a "quote" \\ back\nline\ttab é 😀 \x1b end'
CASES = [
    (json.dumps({"input": TEXT}), TEXT),
    (json.dumps({"input": TEXT}, ensure_ascii=False), TEXT),
    (' {\n "input" :\n "x", "other": "y"}', "x"),
    ('{"input": ""}', ""),
    ("{}", ""),
    ("{ ", ""),
    ("", ""),
    ("free text", "free text"),
    ('{"code": "x"}', '{"code": "x"}'),
    ('{"in put": "x"}', '{"in put": "x"}'),
    ('{"input": 5}', '{"input": 5}'),
    ('{"input": "cut', "cut"),
    ('{"input": "cut\\', "cut"),
    ('{"input": "cut\\u00', "cut"),
    ('{"input": "half \\ud83d pair"}', "half � pair"),
    ('{"inp', '{"inp'),
]


@pytest.mark.parametrize(("arguments", "text"), CASES)
def test_the_text_is_the_same_whole_and_cut_anywhere(arguments: str, text: str) -> None:
    for cut in range(1, len(arguments) + 2):
        reader = FreeInput()
        pieces = [reader.feed(arguments[at : at + cut]) for at in range(0, len(arguments), cut)]
        assert "".join(pieces) + reader.feed("", final=True) == text


def test_the_text_goes_out_as_it_comes() -> None:
    reader = FreeInput()
    assert [reader.feed(piece) for piece in ('{"input": "', "ab", "\\", "n", "\\ud83d", "\\ude00", 'c"', "}")] == [
        "",
        "ab",
        "",
        "\n",
        "",
        "😀",
        "c",
        "",
    ]
