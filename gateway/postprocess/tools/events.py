"""What a tool parser makes of an answer's text, in the order of the text."""

from __future__ import annotations

from typing import NamedTuple


class Text(NamedTuple):
    """Answer text, as it came."""

    text: str


class Hidden(NamedTuple):
    """So many characters of the text are markup or belong to a call."""

    num_chars: int


class Gap(NamedTuple):
    """Text of ours that parts two messages; it stands in the place of as much markup."""

    text: str


class CallBegin(NamedTuple):
    """A call's function is known."""

    name: str


class Arguments(NamedTuple):
    """A piece of the last call's arguments."""

    text: str


class CallEnd(NamedTuple):
    """The last call is over; not `complete` if its JSON broke off."""

    complete: bool


Event = Text | Hidden | Gap | CallBegin | Arguments | CallEnd
