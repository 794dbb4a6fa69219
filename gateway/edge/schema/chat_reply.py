"""Chat completions, outwards: OpenAI's chunks and completion object.

Reasoning is `reasoning_content`, the field that most clients read, or what a setting names. All chunks of a stream
share their head, which is encoded once. After an error in mid-stream comes one event with an `error` object, then
[DONE], and no finish reason.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from gateway.edge.bill import Bill
from gateway.edge.errors import error_object
from gateway.edge.identity import new_request_id
from gateway.edge.jsontext import to_json
from gateway.edge.reply import ChoiceUpdate, merged
from gateway.edge.running_usage import RunningUsage
from gateway.edge.schema.called import call_of
from gateway.edge.schema.chat import ChatRequest, StreamOptions
from gateway.edge.schema.logprobs import logprob_object
from gateway.edge.schema.prompt_logprobs import PromptLogprobs
from gateway.postprocess.delta import CallRef, TextDelta
from wire.errors import HeadraceError
from wire.messages import ChatMessage, Request, ToolForm
from wire.vocabulary import Vocabulary

DONE = b"data: [DONE]\n\n"


def _call(ref: CallRef, text: str) -> dict[str, Any]:
    form = ref.form or ToolForm(name=ref.name)
    kind, name = _CALLS[form.custom]
    return {"id": ref.id, "type": kind, kind: {"name": form.name, name: text}}


_CALLS = {False: ("function", "arguments"), True: ("custom", "input")}


class _Choice:
    """What a choice has said so far."""

    def __init__(self) -> None:
        self.answer: list[str] = []
        self.reasoning: list[str] = []
        self.logprobs: list[dict[str, Any]] = []
        self.finish_reason: str | None = None
        self.calls: list[tuple[CallRef, list[str]]] = []

    def note_call(self, delta: TextDelta) -> bool:
        """Add argument text to its call; returns whether the call is new."""
        assert delta.call is not None, "a tool delta names its call"
        new = delta.call.index == len(self.calls)
        if new:
            self.calls.append((delta.call, []))
        self.calls[delta.call.index][1].append(delta.text)
        return new


class ChatReply:
    """The answer to one chat request."""

    def __init__(
        self,
        body: ChatRequest,
        request: Request,
        vocabulary: Vocabulary,
        *,
        reasoning_names: Sequence[str] = ("reasoning_content",),
    ) -> None:
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{new_request_id()}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": request.model,
            **{name: request.reply[name] for name in ("id", "created") if name in request.reply},
        }
        options = body.stream_options or StreamOptions()
        self._include_usage = bool(options.include_usage)
        self._continuous_usage = bool(options.continuous_usage_stats)
        self._usage = RunningUsage(choices_per_prompt=request.sampling.n)
        self._prompt_logprobs = PromptLogprobs(vocabulary) if body.prompt_logprobs is not None else None
        self._prompt_table: list[dict[str, Any] | None] | None = None
        self._service_tier = "default" if body.service_tier else None
        self._prefix = b"data: " + to_json(self._head)[:-1] + b',"choices":['
        self._suffix = b'],"usage":null}\n\n' if self._include_usage else b"]}\n\n"
        self._logprobs = request.sampling.logprobs is not None
        self._reasoning_names = reasoning_names
        self._choices = [_Choice() for _ in range(request.sampling.n)]
        self._text_heads: dict[tuple[int, str], bytes] = {}

    @property
    def id(self) -> str:
        """Return the id of the answer."""
        return str(self._head["id"])

    def opening(self) -> bytes:
        """Return the role chunk of every choice."""
        delta = {"role": "assistant", "content": ""}
        return b"".join(self._chunk(index, delta) for index in range(len(self._choices)))

    def events(self, updates: list[ChoiceUpdate]) -> bytes:
        """Return one chunk for each run of text, and one for each choice that ended."""
        events: list[bytes] = []
        for update in updates:
            self._note_usage(update)
            for delta in merged(update.deltas):
                if delta.kind == "tool":
                    events += self._call_chunks(update.choice, delta)
                    continue
                names = ("content",) if delta.kind == "answer" else self._reasoning_names
                if not delta.logprobs and len(names) == 1:
                    events.append(self._text_chunk(update.choice, names[0], delta.text))
                    continue
                logprobs = [logprob_object(entry) for entry in delta.logprobs] if self._logprobs else None
                events.append(self._chunk(update.choice, dict.fromkeys(names, delta.text), logprobs=logprobs))
            if update.finish_reason is not None:
                events.append(self._chunk(update.choice, {}, finish_reason=update.finish_reason))
        return b"".join(events)

    def absorb(self, updates: list[ChoiceUpdate]) -> None:
        """Collect text, log probabilities and finish reasons."""
        for update in updates:
            choice = self._choices[update.choice]
            if update.prompt_logprobs and self._prompt_logprobs is not None:
                self._prompt_table = self._prompt_logprobs.table(update)
            for delta in update.deltas:
                if delta.kind == "tool":
                    choice.note_call(delta)
                    continue
                (choice.answer if delta.kind == "answer" else choice.reasoning).append(delta.text)
                if self._logprobs:
                    choice.logprobs += [logprob_object(entry) for entry in delta.logprobs]
            choice.finish_reason = update.finish_reason or choice.finish_reason

    def closing(self, bill: Bill) -> bytes:
        """Return the usage chunk if it was asked for, and the end mark."""
        if not self._include_usage:
            return DONE
        return b"data: " + to_json({**self._head, "choices": [], "usage": bill.chat_usage()}) + b"\n\n" + DONE

    def failure(self, error: HeadraceError) -> bytes:
        """Return the error event and the end mark."""
        return b"data: " + to_json(error_object(error)) + b"\n\n" + DONE

    def whole(self, bill: Bill) -> dict[str, Any]:
        """Return the chat.completion object."""
        choices = [self._whole_choice(index, choice) for index, choice in enumerate(self._choices)]
        whole = {**self._head, "object": "chat.completion", "choices": choices, "usage": bill.chat_usage()}
        whole |= {"prompt_logprobs": self._prompt_table} if self._prompt_logprobs is not None else {}
        return whole | ({"service_tier": self._service_tier} if self._service_tier is not None else {})

    def _note_usage(self, update: ChoiceUpdate) -> None:
        if self._continuous_usage:
            self._usage.note(update)
            self._suffix = b'],"usage":' + to_json(self._usage.totals()) + b"}\n\n"

    def stored(self, bill: Bill, status: str, error: HeadraceError | None = None) -> dict[str, Any]:
        """Chat completions are not stored."""
        del bill, status, error
        return {}

    def messages(self) -> tuple[ChatMessage, ...]:
        """Return the first choice as a message."""
        first = self._choices[0]
        calls = tuple(call_of(ref, "".join(texts)) for ref, texts in first.calls)
        answer, reasoning = "".join(first.answer), "".join(first.reasoning)
        return (ChatMessage(role="assistant", content=answer, reasoning=reasoning, tool_calls=calls),)

    def _whole_choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        content = "".join(choice.answer)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if choice.calls:
            message["content"] = content or None
            message["tool_calls"] = [_call(ref, "".join(texts)) for ref, texts in choice.calls]
        if choice.reasoning:
            message |= dict.fromkeys(self._reasoning_names, "".join(choice.reasoning))
        logprobs = {"content": choice.logprobs, "refusal": None} if self._logprobs else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish_reason}

    def _call_chunks(self, index: int, delta: TextDelta) -> list[bytes]:
        """Return the chunk that announces a call, with an empty string of arguments, and the one with more of them."""
        call = delta.call
        assert call is not None, "a tool delta names its call"
        chunks = []
        if self._choices[index].note_call(delta):
            chunks.append(self._chunk(index, {"tool_calls": [{"index": call.index, **_call(call, "")}]}))
        if delta.text:
            kind, name = _CALLS[call.form is not None and call.form.custom]
            piece = {"index": call.index, kind: {name: delta.text}}
            chunks.append(self._chunk(index, {"tool_calls": [piece]}))
        return chunks

    def _text_chunk(self, index: int, name: str, text: str) -> bytes:
        """Return a chunk of text alone, as most are: what `_chunk` makes, but for the text encoded once."""
        before = self._text_heads.get((index, name))
        if before is None:
            before = self._prefix + b'{"index":%d,"delta":{%b:' % (index, to_json(name))
            self._text_heads[index, name] = before
        return before + to_json(text) + b'},"logprobs":null,"finish_reason":null}' + self._suffix

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: list[dict[str, Any]] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": {"content": logprobs, "refusal": None} if logprobs else None,
            "finish_reason": finish_reason,
        }
        return self._prefix + to_json(choice) + self._suffix
