"""Keeps a process awake for a moment after a request has come in: it polls for news instead of sleeping.

On its way to a first token a request meets seven sleeping processes. Each wakes within 30 to 100 µs on a virtual
machine and begins on a cold core. Where cores are to spare, nobody need sleep while a request is that young.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Awake:
    """The event loop of this process. `for_s` 0: it sleeps whenever nothing is to be done."""

    def __init__(self, for_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._for_s = for_s
        self._clock = clock
        self._until = 0.0
        self._is_turning = False

    def stay(self) -> None:
        """Do not sleep for a while from now on."""
        if self._for_s <= 0:
            return
        self._until = self._clock() + self._for_s
        if not self._is_turning:
            self._is_turning = True
            self._turn()

    def _turn(self) -> None:
        if self._clock() < self._until:
            asyncio.get_running_loop().call_soon(self._turn)  # with something to do, a loop looks for news at once
        else:
            self._is_turning = False
