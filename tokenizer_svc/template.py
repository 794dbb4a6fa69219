"""A model's chat template: messages and tools in, prompt text out.

A caller chooses among the variables that the template offers, never the template itself nor what the desk sets. What
goes wrong inside is the request's fault as far as a client can tell; the message never quotes the template.
"""

from __future__ import annotations

from typing import Any

import jinja2

from tokenizer_svc.sandbox import JOIN, TICK, Budget, ChatEnvironment, OverBudget, Refused, join
from wire.errors import InvalidRequestError, TemplateError

RESERVED = frozenset(
    "messages tools documents add_generation_prompt continue_final_message chat_template tokenize "
    "bos_token eos_token unk_token pad_token raise_exception strftime_now range dict namespace loop self".split()
)
_MAX_REASON = 200


class RefusedError(TemplateError):
    """The template says itself that it does not take these messages."""


class ChatTemplate:
    """A compiled template. Raises TemplateError when the source is no template."""

    def __init__(self, source: str, *, timeout_s: float = 2.0) -> None:
        self.source = source
        self._timeout_s = timeout_s
        try:
            self._template = ChatEnvironment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(f"the model's chat template does not compile ({type(error).__name__})") from error

    def render(self, variables: dict[str, Any]) -> str:
        """Return the prompt text. Takes a worker thread for up to the time budget.

        Raises TemplateError when the template refuses the messages, fails on them or passes its budget.
        """
        budget = Budget(self._timeout_s)
        pieces: list[str] = []
        try:
            for piece in self._template.generate(variables, **{TICK: budget.tick, JOIN: join}):
                budget.spend(len(piece))
                budget.tick()
                pieces.append(piece)
        except Refused as error:
            reason = str(error.message)[:_MAX_REASON]
            raise RefusedError(f"the chat template refuses these messages: {reason}", param="messages") from None
        except OverBudget as error:
            message = f"rendering the chat template passed its {error.message} limit"
            raise TemplateError(message, param="messages") from None
        except Exception as error:  # a template can raise anything; its text and values stay inside
            kind = type(error).__name__
            raise TemplateError(f"the chat template fails on these messages ({kind})", param="messages") from None
        return "".join(pieces)


def check_kwargs(kwargs: dict[str, Any]) -> None:
    """Refuse template variables that a caller may not set. Raises InvalidRequestError."""
    for name in kwargs:
        if name in RESERVED:
            raise InvalidRequestError(f"chat_template_kwargs cannot set {name!r}", param="chat_template_kwargs")
        if not name.isidentifier() or name.startswith("_"):
            raise InvalidRequestError(
                "chat_template_kwargs takes names of letters, digits and underscores, not beginning with one",
                param="chat_template_kwargs",
            )
