"""How a request thinks: from effort or budget to a plan for the engine, and what the template must be told.

An explicit budget wins over an effort (see effort.py). A model whose template knows thinking uses its own way. Any
other thinks only when asked to, by a scaffold: an instruction in the system message, and an assistant turn that is
opened inside a think block. Such a model does not know that it must close the block: where it ends its turn in it, it
is made to go on with the answer.

A model that speaks harmony opens its messages itself. Where a grammar governs, it is begun inside its thoughts, and
what closes these opens the message that the grammar is for: the frame is never the grammar's affair. Where a budget is
spent and there are tools, the model chooses between an answer and a call, only not to think again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tokenizer_svc.effort import EFFORTS, EffortTable
from wire.errors import InvalidRequestError
from wire.harmony import CHANNEL, END, MESSAGE, START, speaks_harmony
from wire.messages import ReasoningPlan, Request

# The soft landing: the last quarter of a budget, two or three sentences long at most; in a tiny one there is no room.
_LANDING_SHARE = 4
_LANDING_MAX = 96
_LANDING_MIN_BUDGET = 32
SCAFFOLD = (
    "Before you answer, think step by step inside <think> and </think>. "
    "Keep the thinking short and to the point, then write the answer after </think>."
)
_NAME = b"analysis"
_THOUGHT = f"{CHANNEL}analysis{MESSAGE}"
_FINAL = f"{CHANNEL}final{MESSAGE}"
_CALL = f"{CHANNEL}commentary to=functions"  # the grammar goes on with a function's name
_HARMONY_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high"}
_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
)


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before rendering.

    `native`: the template knows thinking; `switch`: by the variable `enable_thinking`. `wanted` None: the request does
    not say. `channels`: the model speaks harmony; `leads` is what must then stand behind thoughts, "" for what the
    model likes, and `may_call` tells that this may be a call.
    """

    native: bool
    switch: bool
    open_tag: str = "<think>"
    close_tag: str = "</think>"
    wanted: bool | None = None
    effort: str | None = None
    budget: int | None = None
    channels: bool = False
    leads: str = ""
    may_call: bool = False

    @property
    def scaffold(self) -> bool:
        """Tell whether the desk must make a model think that does not know how."""
        return not self.native and self.wanted is True

    @property
    def opening(self) -> str:
        """Return what is written after the generation prompt."""
        if self.leads:
            return self.open_tag
        return f"{self.open_tag}\n" if self.scaffold else ""

    @property
    def landing(self) -> str:
        """Return what ends thinking after a whole sentence."""
        if self.channels:
            return f"{self.close_tag}{START}assistant{self.leads or (CHANNEL if self.may_call else _FINAL)}"
        return f"{self.close_tag}\n\n"

    def closing(self, bridge: str = "") -> str:
        """Return what ends thinking when the budget is spent; `bridge` is a sentence that leads to the answer."""
        if self.channels:
            return f"\n{bridge}{self.landing}" if bridge else self.landing
        return f"\n{bridge}\n{self.landing}" if bridge else f"\n{self.landing}"

    def resuming(self, *, is_open: bool) -> str:
        """Return what stands between the generation prompt, which may have opened a block, and words of an answer."""
        if self.channels:
            return _FINAL
        return self.closing() if is_open else ""


def choose(request: Request, template: str) -> Thinking:
    """Read what a request wants and what a template can do. Raises InvalidRequestError."""
    if request.effort is not None and request.effort not in EFFORTS:
        raise InvalidRequestError(f"reasoning_effort must be one of {', '.join(EFFORTS)}", param="reasoning_effort")
    if request.budget_tokens is not None and request.budget_tokens < 0:
        raise InvalidRequestError("the reasoning budget must be 0 or more", param="budget_tokens")
    switch = "enable_thinking" in template
    channels = speaks_harmony(template)
    tags = (_THOUGHT, END) if channels else next((pair for pair in _TAGS if pair[0] in template), None)
    open_tag, close_tag = tags or _TAGS[0]
    grammar = request.sampling.grammar
    return Thinking(
        native=switch or tags is not None,
        switch=switch,
        open_tag=open_tag,
        close_tag=close_tag,
        wanted=_wanted(request),
        effort=request.effort,
        budget=request.budget_tokens,
        channels=channels,
        leads="" if grammar is None or not channels else _FINAL if grammar.field else _CALL,
        may_call=channels and grammar is None and bool(request.tools),
    )


def _wanted(request: Request) -> bool | None:
    """Tell whether thinking is asked for: any way of saying no wins."""
    switch = request.template_kwargs.get("enable_thinking")
    if request.effort == "none" or request.budget_tokens == 0 or switch is False:
        return False
    if request.effort is None and request.budget_tokens is None and switch is None:
        return None
    return True


def variables(thinking: Thinking, template: str) -> dict[str, Any]:
    """Return what the template is told about thinking."""
    told: dict[str, Any] = {}
    if thinking.switch and thinking.wanted is not None:
        told["enable_thinking"] = thinking.wanted
    effort = thinking.effort
    if thinking.channels:  # the template puts the word before the model, which was taught three
        effort = "low" if thinking.wanted is False else _HARMONY_EFFORTS.get(effort or "", effort)
    if effort is not None and "reasoning_effort" in template:
        told["reasoning_effort"] = effort
    return told


def plan(
    thinking: Thinking,
    table: EffortTable,
    *,
    starts_open: bool,
    max_tokens: int,
    encode: Callable[[str], list[int]],
    thought_ids: tuple[int, ...] = (),
) -> ReasoningPlan | None:
    """Return the engine's plan, or None when this request has nothing to do with thinking.

    `encode` makes ids of our own text, in which tags are control tokens where the model has them. `thought_ids` begin
    the name of the channel of thoughts.
    """
    if not thinking.native and not thinking.scaffold:
        return None
    tokens = budget(thinking, table, max_tokens)
    lands = tokens is not None and tokens >= _LANDING_MIN_BUDGET
    return ReasoningPlan(
        budget=tokens,
        starts_open=starts_open,
        open_tag=b"" if thinking.channels else thinking.open_tag.encode(),
        close_tag=b"" if thinking.channels else thinking.close_tag.encode(),
        close_ids=tuple(encode(thinking.closing(table.bridge if tokens != 0 else ""))),
        landing=min((tokens or 0) // _LANDING_SHARE, _LANDING_MAX) if lands else 0,
        landing_ids=tuple(encode(thinking.landing)) if lands or thinking.scaffold or thinking.leads else (),
        closes_at_stop=thinking.scaffold,
        channels=thinking.channels,
        leads=bool(thinking.leads),
        barred_ids=thought_ids if thinking.may_call else (),
    )


def beginnings(size: int, token_bytes: Callable[[int], bytes]) -> tuple[int, ...]:
    """Return the tokens with which the name of the channel of thoughts can begin."""
    texts = ((token_id, token_bytes(token_id).strip()) for token_id in range(size))
    return tuple(token_id for token_id, text in texts if text and (_NAME.startswith(text) or text.startswith(_NAME)))


def budget(thinking: Thinking, table: EffortTable, max_tokens: int) -> int | None:
    """Return how many tokens may be spent on thinking; None is no limit."""
    if thinking.wanted is False:
        return 0
    if thinking.budget is not None:
        return thinking.budget
    return None if thinking.effort is None else table.budget(thinking.effort, max_tokens)
