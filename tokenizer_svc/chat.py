"""A conversation -> prompt text with stand-ins for the template's control tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizer_svc.call_ids import with_numbered_ids, with_short_ids
from tokenizer_svc.conversation import Change, as_dicts, system_folded
from tokenizer_svc.harmony import as_harmony, with_descriptions
from tokenizer_svc.marking import Marks, map_strings
from tokenizer_svc.template import ChatTemplate, RefusedError
from tokenizer_svc.tool_scaffold import spell_out
from wire.errors import InvalidRequestError, TemplateError
from wire.messages import ChatMessage, Request
from wire.model_card import ModelCard
from wire.tool_style import HARMONY, knows_tools, tool_style

_PROBE = "headrace-probe"


class ChatRenderer:
    """Renders conversations by a model's template, so that callers' text stays text."""

    def __init__(self, card: ModelCard, marks: Marks, *, timeout_s: float = 2.0) -> None:
        self._marks = marks
        self._template = ChatTemplate(card.chat_template, timeout_s=timeout_s) if card.chat_template else None
        self._tokens = {"bos_token": card.bos_token or "", "eos_token": card.eos_token or ""}
        self._knows_tools = knows_tools(card.chat_template)
        style = tool_style(card.chat_template)
        self._told = _TOLD.get(style, _as_they_are)
        self._wants_descriptions = style == HARMONY
        self._adds_arguments = style in ("deepseek_v3", "deepseek_v31")  # to a text, so they must be one
        self._knows_developer = "developer" in (card.chat_template or "")
        self._takes_parts_only = (
            card.pictures is not None and self._template is not None and takes_parts_only(self._template, self._tokens)
        )

    @property
    def source(self) -> str:
        """Return the template's source, empty if the model has none."""
        return self._template.source if self._template else ""

    def render(self, messages: Sequence[ChatMessage], request: Request, told: dict[str, Any]) -> str:
        """Return the prompt text. `told` are the desk's own template variables. Raises TemplateError."""
        if self._template is None:
            raise InvalidRequestError("this model has no chat template; use raw completions", param="messages")
        messages = self._told(messages) if self._knows_tools else spell_out(messages, request.tools)
        messages, plain = self._accepted(messages, request, told)
        marked = self._rendered(messages, request, told, self._marks.around, self._marks.inside)
        resolved = self._marks.resolve_around(marked, plain)
        if resolved is not None:
            return resolved
        masked = self._rendered(messages, request, told, self._marks.inside, self._marks.inside)
        marked = self._rendered(messages, request, told, self._mask_and_mark, self._marks.inside)
        resolved = self._marks.resolve_around(marked, masked)
        return self._marks.unmask(resolved) if resolved is not None else self._marks.resolve_inside(masked)

    def _accepted(
        self, messages: Sequence[ChatMessage], request: Request, told: dict[str, Any]
    ) -> tuple[Sequence[ChatMessage], str]:
        """Return the messages in a form that the template takes, and what it makes of them."""
        try:
            return messages, self._rendered(messages, request, told, _same, _same)
        except RefusedError:
            folded = system_folded(messages)
            if folded is None:
                raise
            return folded, self._rendered(folded, request, told, _same, _same)

    def _mask_and_mark(self, text: str) -> str:
        return self._marks.around(self._marks.inside(text))

    def _rendered(
        self, messages: Sequence[ChatMessage], request: Request, told: dict[str, Any], change: Change, key: Change
    ) -> str:
        assert self._template is not None
        # A caller's variables steer the template: it compares them, so they are masked, never marked at the ends.
        kwargs = map_strings(request.template_kwargs, _same if change is _same else self._marks.inside, key)
        variables = kwargs | told | self._tokens
        variables["messages"] = as_dicts(
            messages,
            knows_developer=self._knows_developer,
            arguments_as_text=self._adds_arguments,
            in_parts=self._takes_parts_only,
            change=change,
            change_key=key,
        )
        tools = with_descriptions(request.tools) if self._wants_descriptions else list(request.tools)
        variables["tools"] = map_strings(tools, change, key) or None
        variables.setdefault("add_generation_prompt", True)
        return self._template.render(variables)


def takes_parts_only(template: ChatTemplate, tokens: dict[str, str]) -> bool:
    """Tell whether a template shows what users say only if it is a list of parts: that of SmolVLM is one."""

    def shows(content: Any) -> bool:
        variables = {**tokens, "messages": [{"role": "user", "content": content}], "add_generation_prompt": True}
        try:
            return _PROBE in template.render(variables)
        except TemplateError:
            return False

    return not shows(_PROBE) and shows([{"type": "text", "text": _PROBE}])


def _as_they_are(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    return messages


def _same(text: str) -> str:
    return text


_TOLD = {"mistral": with_short_ids, "kimi_k2": with_numbered_ids, HARMONY: as_harmony}
