"""A list of things on the terminal: a row each where rows fit, else a block each; no word of it is ever broken."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console

_GAP = "  "


def show(console: Console, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under the names of their columns; where no terminal is written to, rows fit always."""
    widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
    lines = [
        _GAP.join(set_cell_size(cell, width) for cell, width in zip(row, widths, strict=True)) for row in (names, *rows)
    ]
    if console.is_terminal and max(map(cell_len, lines)) > console.width:
        width = max(map(len, names))
        lines = [
            "\n".join(f"{name:{width}}{_GAP}{cell}" for name, cell in zip(names, row, strict=True)) + "\n"
            for row in rows
        ]
    console.print("\n".join(line.rstrip(" ") for line in lines), markup=False, highlight=False, soft_wrap=True)
