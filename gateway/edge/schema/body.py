"""A request body: read with a limit, decoded into a Struct, its faults named by field.

Rules: UTF-8, a leading byte-order mark is skipped; NaN, Infinity and unpaired surrogate escapes are refused, also in
fields we ignore; of fields we do not know see unknown.py; free-form values may be nested 64 deep.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request

from gateway.edge.compressed import check_encoding, expanded
from gateway.edge.schema.kinds import first_fault, with_far_numbers
from gateway.edge.schema.unknown import check_unknown, warning
from wire.errors import BodyTooLargeError, InvalidRequestError, RequestCancelledError
from wire.threads import in_thread

T = TypeVar("T")

MAX_DEPTH = 64
MAX_VALUES = 100_000
_SILENCE_S = 30.0  # in the middle of a body
_LEAST_BYTES_PER_S = 100.0  # of one that takes longer than that
_INT64 = 2**63  # messages between desks hold no longer whole numbers
WARNINGS = "headrace.warnings"  # of the ASGI scope; the guard makes the header of it
_IS_BIG = "headrace.body_is_big"
_BIG = 64 * 1024  # bytes from which decoding may take a millisecond and leaves the event loop
_GRAMMAR = b'"syntax"'  # of a custom tool, which takes some to be written for its model

_OFFSET = re.compile(r"\(byte (?P<at>\d+)\)")
_KEY_BEFORE = re.compile(rb'"(?P<name>[^"\\]{1,64})"\s*:\s*[-+]?\s*$')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NOT_JSON_NUMBER = re.compile(rb"[-+]?(NaN|Infinity)")


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read a body; one byte too many ends it at once, whatever Content-Length said; so does silence or a crawl.

    Raises BodyTooLargeError, UnsupportedEncodingError or InvalidRequestError.
    """
    too_large = BodyTooLargeError(f"The request body is larger than {max_bytes} bytes.")
    length, encoding = request.headers.get("content-length", ""), request.headers.get("content-encoding", "")
    check_encoding(encoding)
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large
    raw, began = bytearray(), anyio.current_time()
    try:
        pieces = request.stream()
        while True:
            left_s = began + _SILENCE_S + len(raw) / _LEAST_BYTES_PER_S - anyio.current_time()
            with anyio.fail_after(min(_SILENCE_S, left_s)):  # else whoever sends halves holds connections for nothing
                piece = await anext(pieces, None)
            if piece is None:
                break
            raw += piece
            if len(raw) > max_bytes:
                raise too_large
    except TimeoutError:
        late = f"for {_SILENCE_S:g} s" if left_s >= _SILENCE_S else f"at {_LEAST_BYTES_PER_S:g} bytes a second"
        raise InvalidRequestError(f"No more of the request body came {late}.") from None
    except ClientDisconnect:
        raise RequestCancelledError("The client left before its request was read.") from None
    return await expanded(bytes(raw), encoding, max_bytes)


async def read_as(request: Request, cls: type[T], max_bytes: int) -> T:
    """Read and decode a body; fields that `cls` does not have are refused, or named in a header of the answer.

    Raises BodyTooLargeError, or InvalidRequestError that names the field.
    """
    raw = await read_body(request, max_bytes)
    request.scope[_IS_BIG] = len(raw) > _BIG or _GRAMMAR in raw
    body = await decode_body(raw, cls)
    check = in_thread(check_unknown, raw, cls) if len(raw) > _BIG else None
    ignored = await check if check is not None else check_unknown(raw, cls)
    if ignored:
        warn(request, warning(ignored))
    return body


def warn(request: Request, *texts: str) -> None:
    """Say something in a header of the answer."""
    said = [request.scope[WARNINGS]] if WARNINGS in request.scope else []
    if said or texts:
        request.scope[WARNINGS] = "; ".join([*said, *texts])


async def translated(request: Request, translate: Callable[[], T]) -> T:
    """Return what a body means to us, worked out off the event loop if the body was big."""
    return await in_thread(translate) if request.scope.get(_IS_BIG) else translate()


async def decode_body(raw: bytes, cls: type[T]) -> T:
    """Decode a body off the event loop when it is big. Raises InvalidRequestError that names the field."""
    if len(raw) > _BIG:
        return await in_thread(decode, raw, cls)
    return decode(raw, cls)


def decode(raw: bytes, cls: type[T]) -> T:
    """Decode a body."""
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return _decoded(raw, cls)
    except msgspec.DecodeError as error:
        raise _not_json(raw, str(error)) from None
    except UnicodeDecodeError:
        raise InvalidRequestError("The request body is not UTF-8.") from None
    except RecursionError:
        raise InvalidRequestError("The request body is nested too deep.") from None


def _decoded(raw: bytes, cls: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=cls)
    except msgspec.ValidationError:
        pass
    try:
        body = _with_whole_numbers(msgspec.json.decode(raw))
    except msgspec.ValidationError:
        raise _out_of_range(raw, cls) from None
    try:
        return msgspec.convert(body, cls)
    except msgspec.ValidationError as error:
        raise first_fault(body, cls) or InvalidRequestError(f"The request body is refused: {error}.") from None


def _out_of_range(raw: bytes, cls: type) -> InvalidRequestError:
    try:
        found = first_fault(with_far_numbers(raw), cls)
    except ValueError:
        found = None
    return found or InvalidRequestError("The request body holds a number that is out of range.")


def _with_whole_numbers(value: Any) -> Any:
    """Write 16.0 as 16 everywhere: to JSON they are the same number, and some languages write only the first."""
    if isinstance(value, dict):
        return {key: _with_whole_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(inner) for inner in value]
    return int(value) if isinstance(value, float) and abs(value) < _INT64 and value.is_integer() else value


def _not_json(raw: bytes, message: str) -> InvalidRequestError:
    """Name the field before a number that JSON does not have, since it is the value clients get wrong most."""
    offset = _OFFSET.search(message)
    at = int(offset["at"]) if offset else len(raw)
    key = _KEY_BEFORE.search(raw[max(0, at - 96) : at])
    if key and _NOT_JSON_NUMBER.match(raw, at - 1 if raw[at - 1 : at] in (b"-", b"+") else at):
        name = key["name"].decode("utf-8", "replace")
        return InvalidRequestError(f"{name}: must be a finite number.", param=name)
    if not raw.strip():
        return InvalidRequestError("The request body is empty; a JSON object is expected.")
    if "surrogate" in message or ("truncated" in message and _SURROGATE.search(raw)):
        return InvalidRequestError("The request body holds an unpaired surrogate escape.")
    return InvalidRequestError(f"The request body is not valid JSON: {message}.")


def check_depth(value: Any, param: str) -> None:
    """Refuse a free-form value nested deeper than MAX_DEPTH, too big, or with numbers that 64 bits do not hold."""
    level = [value]
    left = MAX_VALUES
    for _ in range(MAX_DEPTH):
        left -= len(level)
        if left < 0:
            raise InvalidRequestError(f"{param}: may hold {MAX_VALUES} values at most.", param=param)
        for item in level:
            if isinstance(item, int) and not -_INT64 <= item < _INT64:
                raise InvalidRequestError(f"{param}: a whole number must fit 64 bits.", param=param)
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise InvalidRequestError(f"{param}: nested deeper than {MAX_DEPTH} levels.", param=param)
