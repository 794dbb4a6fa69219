"""The tree of errors is the one drawn at the head of the file, each with a stable code."""

from __future__ import annotations

import inspect
import re

import pytest

from wire import errors
from wire.errors import HeadraceError, InternalError, by_code

CLASSES = [cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, HeadraceError)]


def drawn() -> dict[str, tuple[int, str | None]]:
    """Class name -> status and parent, as drawn in the module's docstring."""
    found: dict[str, tuple[int, str | None]] = {}
    above: list[str] = []
    assert errors.__doc__ is not None
    for line in errors.__doc__.splitlines():
        if match := re.match(r"([│├└─ ]*)(\w+Error)\b\s*(\d{3})?", line):
            depth = len(match[1]) // 4
            above = [*above[:depth], match[2]]
            found[match[2]] = (int(match[3] or 500), above[-2] if depth else None)
    return found


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    tree = drawn()
    assert sorted(tree) == sorted(cls.__name__ for cls in CLASSES)
    for cls in CLASSES:
        status, parent = tree[cls.__name__]
        assert cls.status == status
        assert parent == (None if cls is HeadraceError else cls.__base__.__name__)  # type: ignore[union-attr]


def test_codes_are_stable_unique_words_and_lead_back_to_their_class() -> None:
    concrete = [cls for cls in CLASSES if cls is not HeadraceError]
    assert len({cls.code for cls in concrete}) == len(concrete)
    for cls in concrete:
        assert re.fullmatch(r"[a-z_]+", cls.code)
        assert by_code(cls.code) is cls


def test_an_unknown_code_is_an_internal_error() -> None:
    assert by_code("from the future") is InternalError


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_carries_its_message_and_the_field_at_fault(cls: type[HeadraceError]) -> None:
    error = cls("what is wrong", param="messages", retry_after_s=2.0)
    assert (str(error), error.message) == ("what is wrong", "what is wrong")
    assert (error.param, error.retry_after_s) == ("messages", 2.0)


@pytest.mark.parametrize("cls", CLASSES)
def test_only_errors_that_a_retry_can_help_are_retryable_and_none_of_them_blames_the_request(
    cls: type[HeadraceError],
) -> None:
    if cls.retryable:
        assert cls.status in (429, 500, 503, 504)
    if 400 <= cls.status < 429:
        assert cls.type == "invalid_request_error"
