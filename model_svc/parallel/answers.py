"""What the last stage drew, on its way to rank 0: read step by step while the next steps are launched."""

from __future__ import annotations

import logging
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from model_svc.engine.plan import Runner
from model_svc.pipe import frame

log = logging.getLogger(__name__)


class Answers:
    """Waits for submitted steps in a thread of its own, in their order, and says over a socket what each one drew."""

    def __init__(self, runner: Runner, sock: socket.socket) -> None:
        self._runner = runner
        self._sock = sock
        self._encoder = msgspec.msgpack.Encoder()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")

    def follow(self, handle: Any) -> None:
        """Say what a step drew, when it has."""
        self._thread.submit(self._tell, handle)

    def close(self) -> None:
        """Wait until all is said."""
        self._thread.shutdown()

    def _tell(self, handle: Any) -> None:
        try:
            self._sock.sendall(frame(self._encoder, self._runner.collect(handle)))
        except Exception:
            # As with a step that cannot be launched; the other thread may be in an exchange that never ends.
            log.exception("this rank stops")
            os._exit(1)
