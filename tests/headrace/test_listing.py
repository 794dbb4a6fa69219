"""Lists of keys and sums on terminals of any width."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from headrace import listing

NAMES = ("tenant", "models", "requests")
ROWS = [["team-with-a-long-name", "first-model, second-model", "7"], ["[/u]", "all", "12"]]


def shown(*, width: int, terminal: bool = True) -> list[str]:
    file = StringIO()
    listing.show(Console(file=file, width=width, force_terminal=terminal, no_color=True), NAMES, ROWS)
    return file.getvalue().splitlines()


def test_what_fits_is_a_row_each_under_the_names_of_the_columns() -> None:
    names, first, second = shown(width=80)
    assert names.index("requests") == first.index("7") == second.index("12")
    assert second.split() == ["[/u]", "all", "12"]


def test_on_a_narrow_terminal_each_is_a_block_with_its_words_whole() -> None:
    lines = shown(width=40)
    assert lines[:4] == ["tenant    team-with-a-long-name", "models    first-model, second-model", "requests  7", ""]
    assert "tenant    [/u]" in lines


def test_a_pipe_has_rows_however_long_they_are() -> None:
    assert len(shown(width=40, terminal=False)) == 1 + len(ROWS)


def test_without_rows_the_names_stand_alone() -> None:
    file = StringIO()
    listing.show(Console(file=file, width=80), NAMES, [])
    assert file.getvalue().split() == list(NAMES)
