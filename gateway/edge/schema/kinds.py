"""Kinds of values in JSON's words, and the first value of a body that is not of the kind that its field takes.

msgspec's own errors speak of Python's types. So a body that it refuses is held against the same types once more, in the
order in which it was written; only refused bodies pay for that.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from wire.errors import InvalidRequestError

_INT64 = 2**63
_MAX_DIGITS = 300
_SHOWN = 40
_PLAIN = re.compile(r"\w{1,64}", re.ASCII)
_FITS: dict[type[inspect.Type], tuple[type, ...]] = {
    inspect.StrType: (str,),
    inspect.IntType: (int,),
    inspect.FloatType: (int, float),
    inspect.BoolType: (bool,),
    inspect.NoneType: (type(None),),
    inspect.ListType: (list,),
    inspect.DictType: (dict,),
    inspect.StructType: (dict,),
}
_WORDS: dict[type[inspect.Type], tuple[str, str]] = {
    inspect.StrType: ("a string", "strings"),
    inspect.IntType: ("an integer", "integers"),
    inspect.FloatType: ("a number", "numbers"),
    inspect.BoolType: ("true or false", ""),
    inspect.ListType: ("an array", "arrays"),
    inspect.DictType: ("an object", "objects"),
    inspect.StructType: ("an object", "objects"),
}


class Far:
    """Stands for a number that is out of range: JSON can write it, nothing can hold it."""


def with_far_numbers(raw: bytes) -> Any:
    """Decode a body that has such numbers. Raises ValueError for what is no JSON behind them."""
    return json.loads(
        raw,
        parse_int=lambda text: int(text) if len(text) <= _MAX_DIGITS else Far(),
        parse_float=lambda text: Far() if math.isinf(float(text)) else float(text),
    )


def kind_of(value: Any) -> str:
    """Return what a value is, for an error: numbers, true, false and null as they are, of others the kind."""
    if value is None or isinstance(value, bool):
        return str(msgspec.json.encode(value), "ascii")
    if isinstance(value, int | float):
        return f"the number {value}" if abs(value) < _INT64 or isinstance(value, float) else "a number out of range"
    if isinstance(value, Far):
        return "a number out of range"
    return "a string" if isinstance(value, str) else "an array" if isinstance(value, Sequence) else "an object"


def shown(value: Any) -> str:
    """Return a text as JSON has it, cut, for an error; of another value what it is."""
    if not isinstance(value, str):
        return kind_of(value)
    return json.dumps(value[:_SHOWN].encode("utf-8", "replace").decode(), ensure_ascii=False)


def must_be(param: str, wanted: str, value: Any, *, of_texts: bool = False) -> InvalidRequestError:
    """Return the error for a value of the wrong kind, or, where texts are told apart, for the wrong text.

    An empty `param` means the body itself.
    """
    where = f"{param}: " if param else "The request body "
    got = shown(value) if of_texts else kind_of(value)
    return InvalidRequestError(f"{where}must be {wanted}, not {got}.", param=param or None)


def missing(param: str, wanted: str = "a string") -> InvalidRequestError:
    """Return the error for a field that is not there."""
    return InvalidRequestError(f"{param}: is missing; it must be {wanted}.", param=param)


def first_fault(body: Any, cls: type) -> InvalidRequestError | None:
    """Return the error of the first value in a decoded body that is not what `cls` says, or None where all are."""
    return _fault(body, _type(cls), "")


@cache
def _type(cls: type) -> inspect.Type:
    return inspect.type_info(cls)


def _fault(value: Any, wanted: inspect.Type, path: str) -> InvalidRequestError | None:
    options = wanted.types if isinstance(wanted, inspect.UnionType) else (wanted,)
    for option in options:
        if _fits(value, option):
            return _inner_fault(value, option, path)
    of_texts = any(isinstance(option, inspect.LiteralType) for option in options)
    return must_be(path, _words(wanted), value, of_texts=of_texts)


def _fits(value: Any, wanted: inspect.Type) -> bool:
    if isinstance(wanted, inspect.LiteralType):
        return value in wanted.values
    return isinstance(wanted, inspect.AnyType) or type(value) in _FITS[type(wanted)]


def _inner_fault(value: Any, wanted: inspect.Type, path: str) -> InvalidRequestError | None:
    if isinstance(wanted, inspect.ListType):
        inner = [(item, wanted.item_type, f"{path}[{at}]") for at, item in enumerate(value)]
    elif isinstance(wanted, inspect.DictType):
        inner = [(item, wanted.value_type, _below(path, key)) for key, item in value.items()]
    elif isinstance(wanted, inspect.StructType):
        fields = {field.encode_name: field for field in wanted.fields}
        inner = [(item, fields[key].type, _below(path, key)) for key, item in value.items() if key in fields]
    else:
        return None
    found = next((fault for one in inner if (fault := _fault(*one)) is not None), None)
    if found is None and isinstance(wanted, inspect.StructType):
        lacks = next((field for field in wanted.fields if field.required and field.encode_name not in value), None)
        return None if lacks is None else missing(_below(path, lacks.encode_name), _words(lacks.type))
    return found


def _below(path: str, key: str) -> str:
    if not _PLAIN.fullmatch(key):
        return f"{path}[{shown(key)}]"
    return f"{path}.{key}" if path else key


def _words(wanted: inspect.Type) -> str:
    """Return what is right. That null is the same as absent need not be said."""
    if isinstance(wanted, inspect.UnionType):
        return _either([_words(option) for option in wanted.types if not isinstance(option, inspect.NoneType)])
    if isinstance(wanted, inspect.LiteralType):
        return _either([shown(value) for value in wanted.values])
    if isinstance(wanted, inspect.ListType) and type(wanted.item_type) in _WORDS:
        return f"an array of {_WORDS[type(wanted.item_type)][1]}"
    return _WORDS[type(wanted)][0]


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
