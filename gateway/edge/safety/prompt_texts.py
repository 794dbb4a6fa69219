"""Where a request holds text: everything of it that reaches a model, or is stored or repeated with its answer.

One walk for all who look at it. A `Hand` is given each text with its place: `text` may be rewritten and judged; `label`
(names, ids) may be rewritten; `fixed` must stay as it is, for something else hangs on it: names that calls must bear,
keys of schemas, grammars.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from gateway.edge.schema.called import arguments_of, text_of_call
from gateway.edge.schema.input_tools import ADDITIONAL
from gateway.edge.schema.prose import map_json
from gateway.postprocess.safety.json_text import PlainJson
from wire.messages import ID_BYTES, ChatMessage, Request, SamplingParams, ToolCall


class Hand(Protocol):
    """What is done with each text: returns the text that may go on, or raises."""

    def text(self, text: str, where: str) -> str:
        """Take a text that somebody wrote."""
        ...

    def label(self, text: str, where: str) -> str:
        """Take a name or an id that may be replaced."""
        ...

    def fixed(self, text: str, where: str) -> str:
        """Take what cannot be replaced."""
        ...


def rewritten(request: Request, hand: Hand, *, field: str, system: str = "instructions") -> Request:
    """Return the request with each text as `hand` gives it; `field`, `system`: its prompt's names in the body."""
    _look_at_grammar(request.sampling, hand)
    return msgspec.structs.replace(
        request,
        reply=_reply(request.reply, hand, system),
        messages=tuple(_message(message, f"{field}[{at}]", hand) for at, message in enumerate(request.messages)),
        instructions=hand.text(request.instructions, system) if request.instructions else request.instructions,
        prompt_text=hand.text(request.prompt_text, field) if request.prompt_text else "",
        prediction=hand.text(request.prediction, "prediction") if request.prediction else "",
        inputs=tuple(
            hand.text(one, request.place_of_input(at)) if isinstance(one, str) else one
            for at, one in enumerate(request.inputs)
        ),
        tools=tuple(_tool(tool, f"tools[{at}]", hand) for at, tool in enumerate(request.tools)),
        template_kwargs=map_json(
            request.template_kwargs,
            lambda text, _: hand.label(text, "chat_template_kwargs"),
            key=lambda text: hand.fixed(text, "chat_template_kwargs"),
        ),
    )


def num_ids(request: Request) -> int:
    """Return how many token ids a request gives in place of texts."""
    return len(request.prompt_ids) // ID_BYTES + sum(len(one) for one in request.inputs if not isinstance(one, str))


def metadata(given: dict[str, str], hand: Hand) -> dict[str, str]:
    """Return metadata (which is stored, as titles are) with each text as `hand` gives it."""
    return {hand.fixed(key, "metadata"): hand.label(value, f"metadata.{key}") for key, value in given.items()}


def _message(message: ChatMessage, where: str, hand: Hand) -> ChatMessage:
    return msgspec.structs.replace(
        message.saying(hand.text(part, where) if isinstance(part, str) else part for part in message.parts),
        reasoning=hand.text(message.reasoning, where) if message.reasoning else "",
        name=hand.label(message.name, where) if message.name else message.name,
        tool_call_id=hand.label(message.tool_call_id, where) if message.tool_call_id else message.tool_call_id,
        tool_calls=tuple(_call(call, where, hand) for call in message.tool_calls),
    )


def _call(call: ToolCall, where: str, hand: Hand) -> ToolCall:
    """Templates parse arguments: what the model reads has no escapes any more."""
    changed = msgspec.structs.replace(call, id=hand.label(call.id, where), name=hand.label(call.name, where))
    form = call.form
    if form is not None:
        space = hand.label(form.namespace, where) if form.namespace else ""
        form = msgspec.structs.replace(form, name=hand.label(form.name, where), namespace=space)
        changed = msgspec.structs.replace(changed, form=form)
    if form is not None and form.custom:
        text = text_of_call(call)
        return msgspec.structs.replace(
            changed, arguments=arguments_of(hand.text(text, where)) if text else call.arguments
        )
    arguments = PlainJson().feed(call.arguments, final=True)
    return msgspec.structs.replace(changed, arguments=hand.text(arguments, where) if arguments else "")


def _tool(tool: dict[str, Any], where: str, hand: Hand) -> dict[str, Any]:
    """What describes a tool may be rewritten; its names, keys and values are what calls are made of."""

    def one(text: str, is_prose: bool) -> str:
        return hand.text(text, where) if is_prose else hand.fixed(text, where)

    found: dict[str, Any] = map_json(tool, one, key=lambda text: hand.fixed(text, where))
    return found


def _look_at_grammar(sampling: SamplingParams, hand: Hand) -> None:
    grammar = sampling.grammar
    if grammar is not None and grammar.source and grammar.field:  # without a field it is that of the tools
        hand.fixed(grammar.source, grammar.field)


def _fixed(hand: Hand, where: str) -> Callable[[str, bool], str]:
    return lambda text, _: hand.fixed(text, where)


def _reply(reply: dict[str, Any], hand: Hand, system: str) -> dict[str, Any]:
    """What the answer repeats is what was allowed; it is stored with it."""
    changed: dict[str, Any] = {}
    if reply.get("instructions"):
        changed["instructions"] = hand.text(reply["instructions"], system)
    if reply.get("metadata"):
        changed["metadata"] = metadata(reply["metadata"], hand)
    for name in ("tools", ADDITIONAL):
        if reply.get(name):
            changed[name] = [_tool(tool, f"tools[{at}]", hand) for at, tool in enumerate(reply[name])]
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        if reply.get(name):
            changed[name] = hand.label(reply[name], name)
    for name, place in (("text", "text.format"), ("tool_choice", "tool_choice")):
        map_json(reply.get(name), _fixed(hand, place), key=lambda text, place=place: hand.fixed(text, place))  # type: ignore[misc]
    return {**reply, **changed} if changed else reply
