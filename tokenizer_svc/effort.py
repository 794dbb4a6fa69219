"""From an effort to a number of thinking tokens, by a table for each model.

| effort  | tokens | at most this share of max_tokens |
|---------|--------|----------------------------------|
| none    | 0      | 0                                |
| minimal | 256    | 1/8                              |
| low     | 1,024  | 1/4                              |
| medium  | 4,096  | 1/2                              |
| high    | 16,384 | 3/4                              |
| xhigh   | 32,768 | 7/8                              |

`max_tokens` is what the context leaves unless the request says less, so a small context has small budgets, and thinking
always leaves room for the answer. The model's `headrace.json` may change the tokens, a setting may change both:
`{"reasoning": {"budgets": {"low": 512}, "bridge": "Enough; the answer:"}}`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from wire.errors import StartError

_DEFAULT = {"none": 0, "minimal": 256, "low": 1024, "medium": 4096, "high": 16384, "xhigh": 32768}
SHARES = {"none": 0.0, "minimal": 0.125, "low": 0.25, "medium": 0.5, "high": 0.75, "xhigh": 0.875}
EFFORTS = tuple(_DEFAULT)


class EffortTableError(StartError):
    """The model's headrace.json or the setting `reasoning_budgets` is wrong; the message names the entry."""


class _Reasoning(msgspec.Struct, forbid_unknown_fields=True):
    budgets: dict[str, int] = {}
    bridge: str = ""


class _File(msgspec.Struct):
    reasoning: _Reasoning = msgspec.field(default_factory=_Reasoning)


class EffortTable(msgspec.Struct, frozen=True, kw_only=True):
    """The budgets of one model; `bridge` is a sentence that is put before a close tag that the budget forces."""

    tokens: dict[str, int]
    bridge: str = ""

    @classmethod
    def load(cls, path: Path, model: str, overrides: Iterable[str] = (), bridge: str = "") -> EffortTable:
        """Read a model directory; `overrides` are settings `low=512` or, for one model, `model:low=512`.

        Raises EffortTableError.
        """
        file = path / "headrace.json"
        try:
            own = msgspec.json.decode(file.read_bytes(), type=_File).reasoning
        except FileNotFoundError:
            own = _Reasoning()
        except msgspec.DecodeError as error:
            raise EffortTableError(f"{file}: {error}") from None
        tokens = {**_DEFAULT, **_checked(own.budgets.items(), str(file))}
        parsed = [parse_override(text) for text in overrides]
        for wanted in ("", model):  # what names the model wins
            tokens |= {effort: count for name, effort, count in parsed if name == wanted}
        return cls(tokens=tokens, bridge=bridge or own.bridge)

    def budget(self, effort: str, max_tokens: int) -> int:
        """Return how many tokens an answer of `max_tokens` may spend on thinking."""
        return min(self.tokens[effort], int(SHARES[effort] * max_tokens))


def parse_override(text: str) -> tuple[str, str, int]:
    """Return (model or "", effort, tokens) of a setting. Raises EffortTableError."""
    name, equals, number = text.rpartition("=")
    model, _, effort = name.strip().rpartition(":")
    if not equals or not number.strip().isdecimal():
        raise EffortTableError(f"reasoning_budgets: {text!r} must read EFFORT=TOKENS or MODEL:EFFORT=TOKENS")
    _checked([(effort, int(number))], "reasoning_budgets")
    return model, effort, int(number)


def _checked(entries: Iterable[tuple[str, int]], where: str) -> dict[str, int]:
    budgets = dict(entries)
    for effort, tokens in budgets.items():
        if effort not in _DEFAULT:
            raise EffortTableError(f"{where}: {effort!r} is no effort; there are {', '.join(EFFORTS)}")
        if tokens < 0 or (effort == "none" and tokens):
            raise EffortTableError(f"{where}: the budget of {effort} cannot be {tokens}")
    return budgets
