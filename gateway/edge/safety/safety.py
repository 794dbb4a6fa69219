"""The safety rules at work in one edge: the policies, the judges, and the audit log."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from anyio.abc import TaskGroup, TaskStatus

from gateway.edge.flight import Flight
from gateway.edge.generation import Generation
from gateway.edge.metrics import Metrics
from gateway.edge.safety.audit import Audit
from gateway.edge.safety.callout import Callout
from gateway.edge.safety.judges import Ask, Judges
from gateway.edge.served import Served
from gateway.edge.settings import EdgeSettings
from gateway.edge.tenancy.accounts import Accounts
from gateway.postprocess.safety.gate import Gate, Window
from gateway.postprocess.safety.hit import Hit
from gateway.postprocess.safety.policy import Direction, SafetyPolicy
from gateway.postprocess.safety.store import Policies
from gateway.postprocess.safety.windows import windows
from wire.bus import Bus
from wire.errors import InvalidRequestError
from wire.messages import Request, unpack_ids
from wire.threads import in_thread

_AT_A_TIME = 16  # windows of one whole text that are judged side by side


class Safety:
    """What an edge needs to apply rules; `run` keeps it up to date."""

    def __init__(
        self,
        policies: Policies,
        settings: EdgeSettings,
        bus: Bus,
        ask: Ask,
        *,
        served: Served,
        accounts: Accounts,
        metrics: Metrics,
        tasks: TaskGroup,
    ) -> None:
        self._policies = policies
        self._reload_s = settings.safety_reload_s
        self._bus = bus
        self._served = served
        self._accounts = accounts
        self._metrics = metrics
        self._tasks = tasks
        self._callout = Callout()
        self.audit = Audit(bus, metrics)
        self.judges = Judges(
            ask, self._callout, max_judgements=settings.safety_judgements, note_failure=metrics.note_judge_failure
        )

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Read policies again when their files change, and write the audit log, until cancelled."""
        self._policies.name_matches_with(await self._bus.secret("safety"))
        async with self._callout, anyio.create_task_group() as tasks:
            await tasks.start(self.audit.run)
            task_status.started()
            while True:
                await anyio.sleep(self._reload_s)
                await in_thread(self._policies.refresh)
                self._metrics.note_policy_faults(len(self._policies.faults))

    def for_request(self, request: Request) -> SafetyPolicy | None:
        """Return the policy of a request's tenant, for its texts or those of its reply."""
        policy = self._policies.of(self._accounts.own(request).tenant)
        return policy.for_reply() if policy is not None else None

    def gate(self, policy: SafetyPolicy, flight: Flight, choice: int) -> Gate | None:
        """Return what holds a choice's text for the judges, if the policy has any; verdicts ring the flight's bell."""
        if not any(policy.judged(direction) for direction in ("answer", "reasoning", "tool")):
            return None

        def submit(window: Window) -> None:
            self._tasks.start_soon(self._judge, policy, window, flight, choice)

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
        vocabulary = self._served.vocabulary(request.model)
        if vocabulary is None:
            raise InvalidRequestError("Safety rules cannot read this model's token ids; send texts.", param="input")
        return [vocabulary.decode_bytes(ids).decode("utf-8", "replace") for ids in given]
