"""Places in a stream: however the text was cut before and is cut now, nothing is missing and nothing comes twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.edge.places import Place, Shown, cut, parse_place, pieces
from gateway.edge.reply import ChoiceUpdate
from gateway.postprocess.delta import CallRef, TextDelta
from wire.errors import InvalidRequestError

CALLS = [CallRef(index=at, id=f"call_{at}", name="f") for at in range(2)]
TEXT = [
    ("reasoning", "hidden thought", None),
    ("answer", "I look. ", None),
    ("tool", '{"a": 1}', CALLS[0]),
    ("tool", "", CALLS[1]),
]


def deltas_of(sizes: list[int]) -> list[TextDelta]:
    """Cut the answer into deltas of these sizes, again and again."""
    found, at = [], 0
    for kind, text, call in TEXT:
        rest = text
        while True:
            size = sizes[at % len(sizes)]
            at += 1
            found.append(TextDelta(kind=kind, text=rest[:size], call=call))  # type: ignore[arg-type]
            rest = rest[size:]
            if not rest:
                break
    return found


def shown_by(events: list[TextDelta]) -> list[tuple[str, str, str]]:
    """Return what a client has of these: kind, call, text."""
    whole: dict[tuple[str, str], str] = {}
    for delta in events:
        key = (delta.kind, delta.call.id if delta.call else "")
        whole[key] = whole.get(key, "") + delta.text
    return [(kind, call, text) for (kind, call), text in whole.items()]


def events_of(sizes: list[int]) -> list[TextDelta]:
    updates = [ChoiceUpdate(0, [delta]) for delta in deltas_of(sizes)]
    return [delta for update in updates for piece in pieces(update) for delta in piece.deltas]


@given(st.lists(st.integers(1, 9), min_size=1), st.lists(st.integers(1, 9), min_size=1), st.integers(0, 40))
def test_the_rest_joins_what_was_shown(before: list[int], after: list[int], count: int) -> None:
    first = events_of(before)[:count]
    until = Shown()
    for delta in first:
        until.add(delta)
    shown, rest = Shown(), []
    known: set[int] = set()  # calls that the reply has noted: another delta of theirs does not announce them
    announced = [delta.call.index for delta in first if delta.call is not None]
    for delta in events_of(after):
        before_it, left = cut(delta, shown, until)
        shown.add(delta)
        known |= {before_it.call.index} if before_it is not None and before_it.call is not None else set()
        if left is not None:
            rest.append(left)
            if left.call is not None and left.call.index not in known:
                assert left.call.index not in announced, "announced twice"
                known.add(left.call.index)
    assert shown_by(first + rest) == shown_by(events_of(after)) == shown_by(events_of(before))


def test_a_place_is_read_back() -> None:
    place = Place(3, "0" * 32, [Shown(1, 2, 3, 4, 5), Shown(finished=True)], usage=True)
    assert parse_place(str(place)) == place


@pytest.mark.parametrize("value", ["", "x", "0." + "0" * 32, "0." + "0" * 32 + ".1-2-3", "9" * 400])
def test_what_is_no_place_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="Last-Event-ID"):
        parse_place(value)
