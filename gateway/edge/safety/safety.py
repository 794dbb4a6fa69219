"""The safety rules at work in one edge: the policies, the judges, and the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus

from gateway.edge.flight import Flight
from gateway.edge.safety.ask_model import AskModel
from gateway.edge.safety.audit import Audit
from gateway.edge.safety.callout import Callout
from gateway.edge.safety.judges import Judges
from gateway.postprocess.safety.gate import Gate, Window
from gateway.postprocess.safety.hit import Hit
from gateway.postprocess.safety.policy import Direction, SafetyPolicy
from gateway.postprocess.safety.store import Policies
from gateway.postprocess.safety.windows import windows
from wire.errors import InvalidRequestError
from wire.messages import Request, unpack_ids

if TYPE_CHECKING:
    from gateway.edge.edge import Edge
    from gateway.edge.generation import Generation

_AT_A_TIME = 16  # windows of one whole text that are judged side by side


class Safety:
    """What an edge needs to apply rules; `run` keeps it up to date."""

    def __init__(self, policies: Policies, edge: Edge) -> None:
        self._policies = policies
        self._edge = edge
        self._callout = Callout()
        self.audit = Audit(edge.bus, edge.metrics)
        self.judges = Judges(
            AskModel(edge),
            self._callout,
            max_judgements=edge.settings.safety_judgements,
            note_failure=edge.metrics.note_judge_failure,
        )

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Read policies again when their files change, and write the audit log, until cancelled."""
        self._policies.name_matches_with(await self._edge.bus.secret("safety"))
        async with self._callout, anyio.create_task_group() as tasks:
            await tasks.start(self.audit.run)
            task_status.started()
            while True:
                await anyio.sleep(self._edge.settings.safety_reload_s)
                await anyio.to_thread.run_sync(self._policies.refresh)
                self._edge.metrics.note_policy_faults(len(self._policies.faults))

    def for_request(self, request: Request) -> SafetyPolicy | None:
        """Return the policy of a request's tenant, for its texts or those of its reply."""
        policy = self._policies.of(self._edge.accounts.own(request).tenant)
        return policy.for_reply() if policy is not None else None

    def gate(self, policy: SafetyPolicy, flight: Flight, choice: int) -> Gate | None:
        """Return what holds a choice's text for the judges, if the policy has any; verdicts ring the flight's bell."""
        if not any(policy.judged(direction) for direction in ("answer", "reasoning", "tool")):
            return None

        def submit(window: Window) -> None:
            self._edge.spawn(self._judge, policy, window, flight, choice)

        return Gate(policy, submit)

    async def _judge(self, policy: SafetyPolicy, window: Window, flight: Flight, choice: int) -> None:
        await self.judges.settle(policy, window)
        flight.nudge(choice)

    async def judge_whole(self, policy: SafetyPolicy, direction: Direction, text: str) -> tuple[str, list[Hit]]:
        """Judge a text that is there as a whole; returns it with redactions made, up to a block, and what was found."""
        rules = policy.judged(direction)
        if not rules:
            return text, []
        found: list[Window] = []
        at = 0
        for piece in windows(text, min(rule.window_chars for rule in rules)):
            window = Window(direction, rules, at)
            window.text = piece
            at += len(piece)
            found.append(window)
        for first in range(0, len(found), _AT_A_TIME):
            async with anyio.create_task_group() as tasks:
                for window in found[first : first + _AT_A_TIME]:
                    if window.text.strip():
                        tasks.start_soon(lambda one=window: self.judges.settle(policy, one, patient=True))  # type: ignore[misc]
        shown: list[str] = []
        hits: list[Hit] = []
        for window in found:
            of_window = window.hits(policy.digest(window.text) if policy.digest else "")
            hits += of_window
            action = of_window[0].action if of_window else "flag"
            if action == "block":
                break
            shown.append(window.replacement(of_window[0].rule) if action == "redact" else window.text)
        return "".join(shown), hits

    def note(self, generation: Generation) -> None:
        """Let the audit log say what the rules did to an answer."""
        for choice, hits in enumerate(generation.hits):
            if hits:
                self.audit.note(
                    hits,
                    request_id=generation.job.request_id,
                    tenant=generation.request.tenant,
                    model=generation.request.model,
                    choice=choice,
                )

    def texts_of_ids(self, request: Request) -> list[str]:
        """Return the texts that a request's token ids stand for. Raises InvalidRequestError if they cannot be read."""
        given: list[Sequence[int]] = [unpack_ids(request.prompt_ids)] if request.prompt_ids else []
        given += [one for one in request.inputs if not isinstance(one, str)]
        if not given:
            return []
        vocabulary = self._edge.served.vocabulary(request.model)
        if vocabulary is None:
            raise InvalidRequestError("Safety rules cannot read this model's token ids; send texts.", param="input")
        return [vocabulary.decode_bytes(ids).decode("utf-8", "replace") for ids in given]
