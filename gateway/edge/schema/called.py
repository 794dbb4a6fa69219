"""Calls of tools as a conversation keeps them: functions with JSON text, whatever their clients call them."""

from __future__ import annotations

import json

import msgspec

from gateway.postprocess.delta import CallRef
from gateway.postprocess.tools.free_input import NAME
from wire.messages import ToolCall, ToolForm


def call_of(call: CallRef, text: str) -> ToolCall:
    """Return a call that the model made with a text, as its client saw it."""
    form = call.form
    if form is None:
        return ToolCall(id=call.id, name=call.name, arguments=text)
    arguments = arguments_of(text) if form.custom else text
    return ToolCall(id=call.id, name=call.name, arguments=arguments, form=msgspec.structs.replace(form, grammar=None))


def custom_call(call_id: str, name: str, text: str, *, shown: str = "", namespace: str = "") -> ToolCall:
    """Return a call of a custom tool that a client tells of; `shown` is the name that the model knows, if another."""
    form = ToolForm(name=name, namespace=namespace, custom=True)
    return ToolCall(id=call_id, name=shown or name, arguments=arguments_of(text), form=form)


def arguments_of(text: str) -> str:
    """Return the arguments that a model writes to call a custom tool with a text."""
    return json.dumps({NAME: text}, ensure_ascii=False)


def text_of_call(call: ToolCall) -> str:
    """Return the text that a custom tool is called with."""
    text: str = msgspec.json.decode(call.arguments)[NAME]
    return text
