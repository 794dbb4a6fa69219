"""Completions, outwards: OpenAI's text_completion objects, whole and streamed.

Choices are numbered prompt by prompt. With `echo` a choice's text begins with its prompt; if log probabilities are
wanted as well, the echo waits for those of the prompt, which come with its first tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.edge.bill import Bill
from gateway.edge.errors import error_object
from gateway.edge.identity import new_request_id
from gateway.edge.jsontext import to_json
from gateway.edge.reply import ChoiceUpdate
from gateway.edge.running_usage import RunningUsage
from gateway.edge.schema.chat_reply import DONE
from gateway.edge.schema.completions import CompletionRequest, prompt_text
from gateway.edge.schema.legacy_logprobs import Columns, LogprobColumns
from gateway.edge.schema.prompt_logprobs import PromptLogprobs
from wire.errors import HeadraceError
from wire.messages import ChatMessage, Request
from wire.vocabulary import Vocabulary


class _Piece(msgspec.Struct):
    """What is new of a choice."""

    choice: int
    text: str
    logprobs: Columns | None = None
    finish_reason: str | None = None


class _Choice:
    """What a choice has said so far; `echo` is said first, once `held` is False."""

    def __init__(self, request: Request, echo: str, *, held: bool) -> None:
        self.request = request
        self.echo = echo
        self.held = held
        self.waiting: list[ChoiceUpdate] = []
        self.texts: list[str] = []
        self.columns = LogprobColumns(0 if held else len(echo))
        self.finish_reason: str | None = None
        self.prompt_logprobs: list[dict[str, Any] | None] | None = None
        self.logprobs: list[float] = []


class CompletionsReply:
    """The answer to one completion body, of which `requests` were made."""

    def __init__(self, body: CompletionRequest, requests: Sequence[Request], vocabulary: Vocabulary) -> None:
        self._head = {
            "id": f"cmpl-{new_request_id()}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": requests[0].model,
        }
        options = body.stream_options
        self._include_usage = bool(options and options.include_usage)
        self._continuous_usage = bool(options and options.continuous_usage_stats)
        self._logprobs = body.logprobs is not None
        self._shows_prompt_logprobs = body.prompt_logprobs is not None
        self._hides_answer = body.hides_answer
        self._prompt_logprobs = PromptLogprobs(vocabulary)
        self._n = requests[0].sampling.n
        self._num_shown = requests[0].return_best or self._n
        self._usage = RunningUsage(choices_per_prompt=self._n)
        held = bool(body.echo) and self._logprobs
        self._choices = [
            _Choice(request, prompt_text(request, vocabulary) if body.echo else "", held=held)
            for request in requests
            for _ in range(self._n)
        ]

    @property
    def id(self) -> str:
        """Return the id of the answer."""
        return str(self._head["id"])

    def opening(self) -> bytes:
        """Return what is echoed."""
        pieces = [_Piece(at, choice.echo) for at, choice in enumerate(self._choices) if choice.echo and not choice.held]
        return b"".join(map(self._event, pieces))

    def events(self, updates: list[ChoiceUpdate]) -> bytes:
        """Return one chunk for each choice that has something new, and one for each echo."""
        events: list[bytes] = []
        for update in updates:
            self._usage.note(update)
            events += [self._event(piece) for piece in self._take(update)]
        return b"".join(events)

    def absorb(self, updates: list[ChoiceUpdate]) -> None:
        """Collect text, log probabilities and finish reasons."""
        for update in updates:
            for piece in self._take(update):
                choice = self._choices[piece.choice]
                choice.texts.append(piece.text)
                choice.finish_reason = piece.finish_reason or choice.finish_reason

    def closing(self, bill: Bill) -> bytes:
        """Return the usage chunk if it was asked for, and the end mark."""
        if not self._include_usage:
            return DONE
        return b"data: " + to_json({**self._head, "choices": [], "usage": self._bill(bill)}) + b"\n\n" + DONE

    def failure(self, error: HeadraceError) -> bytes:
        """Return the error event and the end mark."""
        return b"data: " + to_json(error_object(error)) + b"\n\n" + DONE

    def whole(self, bill: Bill) -> dict[str, Any]:
        """Return the text_completion object."""
        choices = [self._whole_choice(index, choice) for index, choice in enumerate(self._best())]
        return {**self._head, "choices": choices, "usage": self._bill(bill)}

    def stored(self, bill: Bill, status: str, error: HeadraceError | None = None) -> dict[str, Any]:
        """Completions are not stored."""
        del bill, status, error
        return {}

    def messages(self) -> tuple[ChatMessage, ...]:
        """A raw text is no conversation."""
        return ()

    def _best(self) -> list[_Choice]:
        """Return the choices of each prompt that are most likely by the mean of their tokens; best_of made more."""
        if self._num_shown == self._n:
            return self._choices
        groups = [self._choices[at : at + self._n] for at in range(0, len(self._choices), self._n)]
        return [one for group in groups for one in sorted(group, key=_mean, reverse=True)[: self._num_shown]]

    def _whole_choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        shown = {
            "index": index,
            "text": ("" if self._logprobs else choice.echo) + "".join(choice.texts),
            "logprobs": choice.columns.all if self._logprobs else None,
            "finish_reason": choice.finish_reason,
        }
        return shown | ({"prompt_logprobs": choice.prompt_logprobs} if self._shows_prompt_logprobs else {})

    def _take(self, update: ChoiceUpdate) -> list[_Piece]:
        """Return what may be shown now; what comes before the echo of its choice waits."""
        pieces: list[_Piece] = []
        if update.prompt_logprobs:
            for at in self._beside(update.choice):
                pieces += self._take_prompt(at, update)
        choice = self._choices[update.choice]
        if update.num_prompt_tokens == 1:  # of which nothing is told, since nothing stands before it
            pieces += self._take_only_token(update.choice)
        if choice.held and not self._comes_without_prompt(update):
            choice.waiting.append(update)
            return pieces
        if choice.held:  # nothing is known of the prompt's tokens, and nothing more will come
            pieces += [piece for at in self._beside(update.choice) for piece in self._let_go(at)]
        waiting, choice.waiting = choice.waiting, []
        return pieces + [piece for one in (*waiting, update) for piece in self._take_answer(one)]

    def _beside(self, choice: int) -> range:
        """Return the choices of the same prompt; what is known of that comes with the first one's tokens."""
        first = choice - choice % self._n
        return range(first, first + self._n)

    def _comes_without_prompt(self, update: ChoiceUpdate) -> bool:
        """Tell whether a prompt's first choice has ended without a word about it; others may end before that begins."""
        return update.finish_reason is not None and update.choice == self._beside(update.choice)[0]

    def _let_go(self, at: int) -> list[_Piece]:
        """Show an echo of which nothing more is known, and what waited for it."""
        choice = self._choices[at]
        if not choice.held:
            return []
        choice.held = False
        waiting, choice.waiting = choice.waiting, []
        return [_Piece(at, choice.echo), *(piece for one in waiting for piece in self._take_answer(one))]

    def _take_prompt(self, at: int, update: ChoiceUpdate) -> list[_Piece]:
        choice = self._choices[at]
        if self._shows_prompt_logprobs and choice.prompt_logprobs is None:
            choice.prompt_logprobs = self._prompt_logprobs.table(update)
        if not choice.held:
            return []
        choice.held = False
        added = self._prompt_logprobs.num_added(update, choice.request.prompt_text)
        columns = choice.columns.take_prompt(self._prompt_logprobs.entries(update, added=added))
        waiting, choice.waiting = choice.waiting, []
        return [_Piece(at, choice.echo, columns), *(piece for one in waiting for piece in self._take_answer(one))]

    def _take_only_token(self, at: int) -> list[_Piece]:
        """Show a prompt of one token, of which nobody can say how likely it was."""
        choice = self._choices[at]
        if self._shows_prompt_logprobs and choice.prompt_logprobs is None:
            choice.prompt_logprobs = [None]
        if not choice.held:
            return []
        choice.held = False
        return [_Piece(at, choice.echo, choice.columns.take_prompt(self._prompt_logprobs.only(choice.request)))]

    def _take_answer(self, update: ChoiceUpdate) -> list[_Piece]:
        text = "".join(delta.text for delta in update.deltas)
        entries = [entry for delta in update.deltas for entry in delta.logprobs]
        if self._hides_answer:
            text, entries = "", []
        if not (text or entries or update.finish_reason):
            return []
        choice = self._choices[update.choice]
        choice.logprobs += [entry.logprob for entry in entries]
        columns = choice.columns.take(entries) if entries and self._logprobs else None
        return [_Piece(update.choice, text, columns, update.finish_reason)]

    def _bill(self, bill: Bill) -> dict[str, Any]:
        """The token that was computed for an echo alone is ours, not the client's."""
        return (msgspec.structs.replace(bill, completion_tokens=0) if self._hides_answer else bill).chat_usage()

    def _event(self, piece: _Piece) -> bytes:
        choice = {
            "index": piece.choice,
            "text": piece.text,
            "logprobs": piece.logprobs,
            "finish_reason": piece.finish_reason,
        }
        chunk: dict[str, Any] = {**self._head, "choices": [choice]}
        if self._continuous_usage:
            chunk["usage"] = self._usage.totals()
        elif self._include_usage:
            chunk["usage"] = None
        return b"data: " + to_json(chunk) + b"\n\n"


def _mean(choice: _Choice) -> float:
    return sum(choice.logprobs) / max(1, len(choice.logprobs))
