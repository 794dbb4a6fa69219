"""The vendored libraries are the files that their table names."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

VENDOR = Path(__file__).parents[2] / "gateway" / "webchat" / "vendor"


def test_every_vendored_file_has_the_sum_in_the_table_and_a_licence() -> None:
    table = (VENDOR / "README.md").read_text()
    rows = dict(re.findall(r"^\| `(\S+)` \|.*`([0-9a-f]{64})` \|$", table, re.MULTILINE))
    files = {path.name for path in VENDOR.iterdir() if path.suffix in {".js", ".mjs"}}
    assert set(rows) == files
    for name, expected in rows.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == expected, name
    for licence in re.findall(r"`(\w+\.LICENSE)`", table):
        assert (VENDOR / licence).stat().st_size > 500
