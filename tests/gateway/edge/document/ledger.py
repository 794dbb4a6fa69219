"""Which operations a long run has tried, in a file, so that it can be broken off, looked at and gone on with."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

FOLDER = Path(".fuzz")


class Ledger:
    """Lines of what is done; once every part is, the next run begins anew."""

    def __init__(self, examples: int, num_parts: int) -> None:
        self._path = FOLDER / f"schema-{examples}.jsonl"
        self._num_parts = num_parts

    def done(self) -> set[str]:
        """Return the parts in which nothing was found."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        done = {line["operation"] for line in map(json.loads, lines) if line["found_nothing"]}
        if len(done) == self._num_parts:
            self._path.rename(self._path.with_suffix(".complete"))
            return set()
        return done

    def note(self, operation: str, num_cases: int, *, found_nothing: bool) -> None:
        """Add a line, and print it."""
        FOLDER.mkdir(exist_ok=True)
        line = {"operation": operation, "cases": num_cases, "found_nothing": found_nothing, "at": time.ctime()}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"\n{operation}: {num_cases} cases, {'nothing found' if found_nothing else 'FOUND'}")  # noqa: T201


def count_of(printed: str) -> int:
    """Return how many cases schemathesis says that it has tried."""
    found = re.search(r"Test cases:\s*\n?\s*([\d,]+) generated", printed)
    return int(found[1].replace(",", "")) if found else 0
