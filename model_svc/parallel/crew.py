"""The processes of ranks 1 and up, as rank 0 has them: started, told what to do, watched, and ended with it.

A rank that is lost leaves the others in an exchange that never ends. So a thread watches for that, and takes this
process down if it does not come to an end by itself; the service sees it go and starts anew.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from torch.distributed import Store  # type: ignore[attr-defined]

from model_svc.engine.plan import RunnerOption
from model_svc.layers.group import RankError
from model_svc.parallel.join import arrive, is_here
from model_svc.parallel.orders import Begin, Order
from model_svc.pipe import frame

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "model_svc.parallel.rank")
_GRACE_S = 5.0
_LOOK_S = 0.02


class Crew:
    """The ranks of all `devices` but the first. `patience_s`: how long one may keep the others waiting at the start.

    Of ranks that are stages (`staged`) the last one's outputs come by `answers`.
    """

    def __init__(
        self,
        devices: Sequence[str],
        factory: str,
        model_path: str,
        options: Mapping[str, RunnerOption],
        patience_s: float,
        *,
        staged: bool = False,
    ) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._patience_s = patience_s
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-ranks-")
        self._size = len(devices)
        self._closing = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        self.answers, answering = socket.socketpair()
        for rank in range(1, self._size):
            begin = Begin(
                rank=rank, size=self._size, place=self._place, patience_s=patience_s, device=devices[rank],
                factory=factory, staged=staged, model_path=model_path, options=dict(options),
            )  # fmt: skip
            self._start(begin, answering)
        answering.close()
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watcher.start()

    @property
    def _place(self) -> str:
        return str(Path(self._folder.name) / "meeting")

    def _start(self, begin: Begin, answering: socket.socket) -> None:
        ours, theirs = socket.socketpair()
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        with theirs:
            ends = [theirs.fileno()]
            if begin.staged and begin.rank == self._size - 1:
                ends.append(answering.fileno())
            command = [*COMMAND, str(os.getpid()), level, *map(str, ends)]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=ends)
        self._processes.append(process)
        self._sockets.append(ours)
        ours.sendall(frame(self._encoder, begin))

    def meet(self) -> Store:
        """Wait until all ranks have come. Raises RankError that names the one that has not."""
        store = arrive(0, self._size, self._place)
        until = time.monotonic() + self._patience_s
        for rank, process in enumerate(self._processes, 1):
            while not is_here(store, rank):
                if process.poll() is not None:
                    raise RankError(_ended(rank, process.returncode))
                if time.monotonic() > until:
                    raise RankError(f"rank {rank} has not started within {self._patience_s:g} s")
                time.sleep(_LOOK_S)
        return store

    def send(self, order: Order) -> None:
        """Tell all ranks. Raises RankError if one is gone."""
        framed = frame(self._encoder, order)
        try:
            for each in self._sockets:
                each.sendall(framed)
        except OSError as error:
            raise self.blame(error) from error

    def blame(self, error: Exception) -> Exception:
        """Return what an error of an exchange comes from: a rank that has ended, or else the error itself."""
        for rank, process in enumerate(self._processes, 1):
            try:
                return RankError(_ended(rank, process.wait(_GRACE_S / len(self._processes))))
            except subprocess.TimeoutExpired:
                continue
        return error

    def hang_up(self) -> None:
        """Let nobody wait for answers any more: whoever does reads their end."""
        self.answers.shutdown(socket.SHUT_RDWR)

    def dismiss(self) -> None:
        """Let all ranks end."""
        self._closing.set()
        for each in self._sockets:
            each.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Wait until all have ended, and kill those that do not within some seconds."""
        self.dismiss()
        for process in self._processes:
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                with suppress(subprocess.TimeoutExpired):  # a driver may take its time with what runs on a card
                    process.wait(_GRACE_S)
        self._watcher.join(_GRACE_S)
        for each in self._sockets:
            each.close()
        self.answers.close()
        self._folder.cleanup()

    def _watch(self) -> None:
        ended, _, _ = select.select(self._sockets, [], [])  # they never write: it is their end
        if self._closing.is_set():
            return
        rank = self._sockets.index(ended[0]) + 1
        if self._closing.wait(_GRACE_S):  # an exchange on a CPU fails by itself, and that error tells more
            return
        log.critical("%s; the engine ends with it", _ended(rank, self._processes[rank - 1].poll()))
        os._exit(1)


def _ended(rank: int, code: int | None) -> str:
    return f"rank {rank} has ended" + (f" with exit code {code}" if code is not None else "")
