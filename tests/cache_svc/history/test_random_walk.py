"""Random sequences of turns, branches and deletions against a naive model that keeps every response whole."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tests.cache_svc.history.conftest import PlayedEdge
from wire.errors import NotFoundError
from wire.messages import unpack_ids

pytestmark = pytest.mark.anyio


@dataclass
class Whole:
    """A response with everything before it."""

    texts: list[str]
    ids: list[int] | None
    deleted: bool = False


@dataclass
class Naive:
    """Responses by id; the turns of each conversation in order."""

    responses: dict[str, Whole] = field(default_factory=dict)
    conversations: dict[str, list[str]] = field(default_factory=dict)

    def living(self) -> list[str]:
        return [name for name, whole in self.responses.items() if not whole.deleted]

    def past(self, before: str | None) -> Whole:
        """Return everything that a request sees."""
        if before is None:
            return Whole([], None)
        if before in self.responses:
            return self.responses[before]
        turns = [self.responses[name] for name in self.conversations[before]]
        ids = next((turn.ids for turn in reversed(turns) if turn.ids is not None), None)
        return Whole(turns[-1].texts if turns else [], ids)

    def delete(self, name: str) -> None:
        self.responses[name].deleted = True
        for turns in self.conversations.values():
            while turns and self.responses[turns[-1]].deleted:
                turns.pop()

    def delete_conversation(self, name: str) -> None:
        del self.conversations[name]
        for response, whole in self.responses.items():  # what branched off goes with it
            whole.deleted |= response[5:21] == name[5:21]


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_is_said_branched_and_deleted_recall_tells_the_whole_past(edge: PlayedEdge, seed: int) -> None:
    chance = random.Random(seed)
    model = Naive()
    for step in range(40):
        action = chance.choice(["say"] * 6 + ["create", "delete", "delete", "delete conversation"])
        if action == "create":
            model.conversations[await edge.create()] = []
        elif action == "delete" and model.living():
            name = chance.choice(model.living()[-4:])
            await edge.call("delete_response", id=name)
            model.delete(name)
        elif action == "delete conversation" and len(model.conversations) > 3:
            name = chance.choice(list(model.conversations))
            await edge.call("delete_conversation", id=name)
            model.delete_conversation(name)
        elif action == "say":
            await _say(edge, model, chance, step)
    for before in (*model.conversations, *model.living()):
        found, whole = await edge.recall(before), model.past(before)
        assert [message.content for message in found.messages] == whole.texts
        assert unpack_ids(found.prompt_ids) == (whole.ids or [])
    for name, whole in model.responses.items():
        if whole.deleted:
            with pytest.raises(NotFoundError):
                await edge.recall(name)
    await _only_what_is_needed_is_kept(edge, model)


async def _say(edge: PlayedEdge, model: Naive, chance: random.Random, step: int) -> None:
    before = chance.choice([None, *model.living()[-4:], *model.conversations, *model.conversations])
    past = model.past(before)
    ids = None
    if chance.random() < 0.8:
        kept = (past.ids or [])[: chance.choice([None, None, 2])]
        ids = [*kept, *(chance.randint(0, 3) for _ in range(chance.randint(1, 5)))]
    response = await edge.say(before, f"q{step}.", f"a{step}.", ids=ids)
    model.responses[response] = Whole([*past.texts, f"q{step}.", f"a{step}."], ids)
    if before in model.conversations:
        model.conversations[before].append(response)


async def _only_what_is_needed_is_kept(edge: PlayedEdge, model: Naive) -> None:
    needed = {text for before in (*model.conversations, *model.living()) for text in model.past(before).texts}
    said = {text for whole in model.responses.values() for text in whole.texts}
    kept = b""
    for key in await edge.bus.route.call("", "KEYS", "*:turns"):
        for part, value in zip(*[iter(await edge.bus.route.call("", "HGETALL", key))] * 2, strict=True):
            kept += value if part.startswith((b"s:", b"m:")) else b""
    assert {text for text in said if text.encode() in kept} == needed
