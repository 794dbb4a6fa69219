"""Flags: both forms, and what is refused."""

import pytest

from tests.wire.test_settings import DeskSettings
from wire.flags import from_command_line, parse_flag_pairs, parse_flags
from wire.settings import SettingsError


def test_flags_are_read_in_both_forms() -> None:
    assert parse_flag_pairs(["--max-items=3", "--ratio", "0.1"]) == {"max_items": "3", "ratio": "0.1"}


@pytest.mark.parametrize("arguments", [["max"], ["--max-items"], ["-x", "1"]])
def test_what_is_no_flag_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SettingsError):
        parse_flag_pairs(arguments)


def test_an_unknown_flag_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"--colour.*--max-items"):
        parse_flags(DeskSettings, ["--colour", "red"])


def test_print_settings_shows_every_field_and_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        from_command_line(DeskSettings, ["--print-settings", "--max-items", "4"])
    assert left.value.code == 0
    assert "max_items = 4" in capsys.readouterr().out
