"""Several requests that share one HTTP answer: their choices are numbered through, and they end together.

A completion over a list of prompts is one request a prompt on the ring, so each prompt is placed, cached and billed on
its own. The first error of any of them is the error of the answer; who is left over is cancelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from gateway.edge.bell import Bell
from gateway.edge.bill import Bill
from gateway.edge.generation import Generation
from gateway.edge.reply import ChoiceUpdate, Reply
from wire.errors import HeadraceError


class Batch:
    """The generations of one answer, in the order of their prompts; `bell` rings for all of them."""

    def __init__(self, generations: Sequence[Generation], reply: Reply, bell: Bell) -> None:
        self._generations = generations
        self.bell = bell
        self.reply = reply

    @property
    def name(self) -> str:
        """Return the name of the answer in the log."""
        return f"{self._generations[0].name} and {len(self._generations) - 1} more"

    @property
    def generations(self) -> tuple[Generation, ...]:
        """Return the requests that this answer is made of."""
        return tuple(self._generations)

    @property
    def error(self) -> HeadraceError | None:
        """Return the error that ended the answer."""
        return next((generation.error for generation in self._generations if generation.error is not None), None)

    @error.setter
    def error(self, error: HeadraceError | None) -> None:
        for generation in self._generations:
            generation.error = generation.error or error

    async def wait(self, timeout_s: float) -> None:
        """Wait until every prompt has begun, one has failed, or the time is up: a bad prompt shall be a true status."""
        flights = [generation.flight for generation in self._generations]
        await self.bell.wait_for(
            timeout_s, lambda: all(f.is_ready for f in flights) or any(f.early_failure is not None for f in flights)
        )

    def raise_early_failure(self) -> None:
        """Raise the error that came before any token of a prompt."""
        for at, generation in enumerate(self._generations):
            with naming(at, len(self._generations)):
                generation.raise_early_failure()

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer: the first prompt's times."""
        return self._generations[0].headers()

    @property
    def ended(self) -> bool:
        """Tell whether all choices of all prompts have a finish reason."""
        return all(generation.ended for generation in self._generations)

    async def take_updates(self) -> list[ChoiceUpdate]:
        """Wait for tokens and return what is new of any prompt. Raises the first error."""
        opened = [(at, one) for at, one in enumerate(self._generations) if not one.ended]
        slow = any(one.flight.is_ready for _, one in opened)
        if not slow:
            await self.bell.wait_until(lambda: any(one.flight.is_ready for _, one in opened))
        new: list[ChoiceUpdate] = []
        for at, one in [(at, one) for at, one in opened if one.flight.is_ready]:
            with naming(at, len(self._generations)):
                new += self._numbered(at, await one.take_updates(slow=slow))
        return new

    def take_at_once(self) -> None:
        """Leave it to the task: the prompts are taken one after another, and the error of one names it."""

    def _numbered(self, at: int, updates: list[ChoiceUpdate]) -> list[ChoiceUpdate]:
        request = self._generations[0].request
        first = at * (request.sampling.n)
        return [msgspec.structs.replace(update, choice=first + update.choice) for update in updates]

    async def settle(self, status: str = "") -> Bill:
        """Make up the bill over all prompts."""
        return Bill.joined([await generation.settle(status) for generation in self._generations])


@contextmanager
def naming(at: int, num_prompts: int) -> Iterator[None]:
    """Say which of several prompts an error is about."""
    try:
        yield
    except HeadraceError as error:
        if error.param == "prompt" and num_prompts > 1:
            error.param = f"prompt[{at}]"
        raise
