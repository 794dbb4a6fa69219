"""Cuts a stored conversation that has outgrown the model's context.

The rule: system messages and the last user turn stay; whole turns (a user message and all that follows it, so calls
and their results stay together) go, oldest first. What goes is rounded up to a quarter of the context, so that the
cut stays where it is for several turns and what follows it stays in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tokenizer_svc.conversation import SYSTEM_ROLES
from wire.messages import ChatMessage


def num_turns(messages: Sequence[ChatMessage]) -> int:
    """Return how many turns a conversation has; what an assistant says before the first user message is one, too."""
    return max((turn for turn in _turns(messages) if turn is not None), default=0)


def without_oldest(messages: Sequence[ChatMessage], dropped: int) -> list[ChatMessage]:
    """Return the messages left when the `dropped` oldest turns are cut."""
    return [message for message, turn in zip(messages, _turns(messages), strict=True) if turn is None or turn > dropped]


def _turns(messages: Sequence[ChatMessage]) -> list[int | None]:
    """Return the turn of each message, counted from 1, or None for system messages."""
    turns: list[int | None] = []
    turn = 0
    for message in messages:
        if message.role in SYSTEM_ROLES:
            turns.append(None)
            continue
        if message.role == "user" or turn == 0:
            turn += 1
        turns.append(turn)
    return turns


def num_out_of_reach(messages: Sequence[ChatMessage], *, characters: int) -> int:
    """Return how many of the oldest turns lie more than `characters` before the end: nobody need count their tokens.

    They, too, go in steps, so that this cut stays where it is for a while. The last turn stays.
    """
    sizes = [0] * (num_turns(messages) + 1)  # system messages first
    for message, turn in zip(messages, _turns(messages), strict=True):
        calls = sum(len(call.arguments) for call in message.tool_calls)
        sizes[turn or 0] += len(message.content) + len(message.reasoning) + calls
    excess = sum(sizes) - characters
    step = max(1, characters // 4)
    wanted = -(-excess // step) * step
    dropped = 0
    while wanted > 0 and dropped < len(sizes) - 2:
        dropped += 1
        wanted -= sizes[dropped]
    return dropped


def num_to_drop(turns: int, count: Callable[[int], int], *, context: int, room: int) -> int:
    """Return how many of the oldest turns to cut so that `room` tokens are left for the answer.

    `count(k)` is the number of prompt tokens without the k oldest turns; it is asked for O(log turns) values. If not
    even the last turn alone leaves that room, all others are cut: the caller sees whether it fits.
    """
    total = count(0)
    excess = total + room - context
    if excess <= 0:
        return 0
    step = max(1, context // 4)
    wanted = -(-excess // step) * step
    enough = _least(turns - 1, lambda k: total - count(k) >= wanted)
    if enough < turns - 1 or total - count(enough) >= wanted:
        return enough
    return _least(turns - 1, lambda k: total - count(k) >= excess)


def _least(most: int, holds: Callable[[int], bool]) -> int:
    """Return the smallest k in 0 .. most for which `holds`, which stays true once it is; `most` if none."""
    low, high = 0, max(0, most)
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
