"""Decoding: every message comes back, and nothing but a message does."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wire import codec
from wire.messages import Cancel, Failure, Job, Request

numbers = st.integers(-(2**63), 2**63 - 1)
messages = st.one_of(
    st.builds(
        Job,
        request_id=st.text(),
        partition=numbers,
        model=st.text(),
        edge=st.text(),
        deadline=st.floats(allow_nan=False),
        timings_ms=st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=3),
    ),
    st.builds(Failure, request_id=st.text(), attempt=numbers, code=st.text(), message=st.text(), desk=st.text()),
    st.builds(Cancel, request_id=st.text(), attempt=numbers, choice=st.none() | numbers),
)


@given(messages)
def test_a_message_comes_back_as_it_was(message: Job | Failure | Cancel) -> None:
    assert codec.decode_message(codec.encode(message)) == message


@given(st.binary())
@example(b"\xc1")
@example(b"")
def test_bytes_that_are_no_message_raise_a_decode_error_and_nothing_else(raw: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        codec.decode_message(raw)


@given(messages, st.data())
def test_a_cut_message_is_refused(message: Job, data: st.DataObject) -> None:
    raw = codec.encode(message)
    with pytest.raises(msgspec.MsgspecError):
        codec.decode_message(raw[: data.draw(st.integers(0, len(raw) - 1))])


def test_a_record_field_of_another_type_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        codec.decode(codec.encode(Request(model="m", kind="chat")), Job)


def test_a_wrong_type_inside_a_message_is_refused() -> None:
    raw = msgspec.msgpack.encode({"type": "Cancel", "request_id": 5, "attempt": 0})
    with pytest.raises(msgspec.ValidationError, match="request_id"):
        codec.decode_message(raw)
