"""Places in a stream, as the `id:` lines of its events name them: how much of each choice the client has by then.

Places are measured in characters, not in tokens or events: a client that comes back gets the same text cut at other
points. The events before a place are made again and thrown away, so that what a reply has noted of them is right.
"""

from __future__ import annotations

import re

import msgspec

from gateway.edge.reply import ChoiceUpdate
from gateway.edge.schema.sampling import fail
from gateway.postprocess.delta import TextDelta

_CHOICE = r"\d{1,9}-\d{1,9}-\d{1,9}-\d{1,5}-\d{1,9}f?"
_PLACE = re.compile(
    rf"(?P<partition>\d{{1,5}})\.(?P<request>[0-9a-f]{{32}})\.(?P<choices>{_CHOICE}(?:_{_CHOICE})*)(?P<usage>u?)"
)
_KINDS = ("answer", "reasoning", "tool")


class Shown(msgspec.Struct):
    """What was shown of a choice: characters of each kind, calls announced, log probabilities, and whether it ended."""

    answer: int = 0
    reasoning: int = 0
    tool: int = 0
    calls: int = 0
    logprobs: int = 0
    finished: bool = False

    def add(self, delta: TextDelta) -> None:
        """Count a delta."""
        setattr(self, delta.kind, getattr(self, delta.kind) + len(delta.text))
        self.logprobs += len(delta.logprobs)
        if delta.call is not None:
            self.calls = max(self.calls, delta.call.index + 1)

    def __str__(self) -> str:
        counts = (self.answer, self.reasoning, self.tool, self.calls, self.logprobs)
        return "-".join(map(str, counts)) + ("f" if self.finished else "")


class Place(msgspec.Struct):
    """A place in the stream of one request. `usage`: the chunk with the usage was shown too."""

    partition: int
    request_id: str
    choices: list[Shown]
    usage: bool = False

    def __str__(self) -> str:
        choices = "_".join(map(str, self.choices))
        return f"{self.partition}.{self.request_id}.{choices}{'u' if self.usage else ''}"


def parse_place(value: str) -> Place:
    """Read a Last-Event-ID. Raises InvalidRequestError for one that no stream of ours has."""
    found = _PLACE.fullmatch(value)
    if found is None:
        raise fail("Last-Event-ID", "is no id of an event that was sent here.")
    choices = []
    for text in found["choices"].split("_"):
        answer, reasoning, tool, calls, logprobs = (int(count) for count in text.removesuffix("f").split("-"))
        choices.append(Shown(answer, reasoning, tool, calls, logprobs, text.endswith("f")))
    return Place(int(found["partition"]), found["request"], choices, bool(found["usage"]))


def pieces(update: ChoiceUpdate) -> list[ChoiceUpdate]:
    """Cut an update into such that each make one event at most."""
    found: list[ChoiceUpdate] = []
    for delta in update.deltas:
        if delta.call is not None and delta.text:  # the call is announced by an event of its own
            found.append(
                msgspec.structs.replace(update, deltas=[msgspec.structs.replace(delta, text="")], finish_reason=None)
            )
        found.append(msgspec.structs.replace(update, deltas=[delta], finish_reason=None))
    if update.finish_reason is not None or not found:
        found.append(msgspec.structs.replace(update, deltas=[]))
    for later in found[1:]:
        later.prompt_ids, later.prompt_logprobs = (), ()
    return found


def cut(delta: TextDelta, before: Shown, until: Shown) -> tuple[TextDelta | None, TextDelta | None]:
    """Part a delta that comes after `before` at the place `until`: what was shown of it, and what was not."""
    at = getattr(until, delta.kind) - getattr(before, delta.kind)
    at = min(max(at, 0), len(delta.text))
    entries = min(max(until.logprobs - before.logprobs, 0), len(delta.logprobs))
    announced = delta.call is not None and delta.call.index < until.calls
    shown = msgspec.structs.replace(delta, text=delta.text[:at], logprobs=delta.logprobs[:entries])
    rest = msgspec.structs.replace(delta, text=delta.text[at:], logprobs=delta.logprobs[entries:])
    has_shown = bool(shown.text or shown.logprobs or announced)
    has_rest = bool(rest.text or rest.logprobs or (delta.call is not None and not announced))
    return shown if has_shown else None, rest if has_rest else None
