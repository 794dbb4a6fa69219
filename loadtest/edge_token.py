"""What the edge's own code costs for a token: no socket, no other process, the application called as a server would.

    python -m loadtest.edge_token [--streams 16] [--steps 400] [--cold] [--profile]

`--cold` walks over 24 MB before each step, as a model's step on the same cores does: caches are others' then, and what
counts is how much code and data a token touches. `--profile` prints the calls of a step instead. Processor time of the
one thread, lower tenth and median of the steps.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import tempfile
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import anyio
import uvloop

from gateway.edge.app import build_app
from gateway.edge.edge import Edge
from gateway.edge.open_body import OPEN_BODY
from gateway.edge.served import Served
from gateway.edge.settings import EdgeSettings
from loadtest.house import MODEL
from loadtest.paced_runner import spoken_id
from wire import codec
from wire.bus import Bus, embedded_server
from wire.messages import TokenBatch, TokenChunk
from wire.settings import default_model_dir
from wire.vocabulary import Vocabulary

_WARM_UP = 20  # steps
_TURNS = 8  # of the loop at most, until all streams have sent
_PATH = "/v1/chat/completions"


class Clients:
    """Streams that are open at an edge, and how many messages it has sent them."""

    def __init__(self, edge: Edge) -> None:
        self.num_sent = 0
        self._app = build_app(edge)
        self.takes = True  # this is an open body, too

    def write(self, data: bytes) -> None:
        """Take a piece of a body."""
        del data
        self.num_sent += 1

    async def ask(self) -> None:
        """Open a stream and take what comes."""
        body = json.dumps({"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "hello"}]}).encode()
        head = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        asked = iter([{"type": "http.request", "body": body, "more_body": False}])
        scope = {
            "type": "http", "method": "POST", "path": _PATH, "raw_path": _PATH.encode(), "query_string": b"",
            "root_path": "", "scheme": "http", "http_version": "1.1", "asgi": {"version": "3.0"},
            "headers": head, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), OPEN_BODY: self,
        }  # fmt: skip

        async def receive() -> MutableMapping[str, Any]:
            message = next(asked, None)
            if message is None:
                await anyio.sleep_forever()
            assert message is not None
            return message

        async def send(message: MutableMapping[str, Any]) -> None:
            del message
            self.num_sent += 1

        await self._app(scope, receive, send)


async def _step_s(edge: Edge, clients: Clients, raw: bytes, num_streams: int) -> float:
    wanted, began = clients.num_sent + num_streams, time.thread_time()
    batch = codec.decode_message(raw)
    assert isinstance(batch, TokenBatch)
    edge.inflight.deliver(batch)
    for _ in range(_TURNS):
        if clients.num_sent >= wanted:
            break
        await anyio.lowlevel.checkpoint()
    return time.thread_time() - began


async def measure(options: argparse.Namespace, profile: cProfile.Profile) -> list[float]:
    """Return seconds of processor time a token, step by step."""
    vocabulary = Vocabulary.load(Path(default_model_dir()) / MODEL)
    token_id = spoken_id(vocabulary)
    others, used = bytearray(24 << 20), list[float]()
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        async with embedded_server(folder) as url, Bus.open(url) as bus, anyio.create_task_group() as tasks:
            settings = EdgeSettings(redis_url=url, models=(MODEL,), model_dir=default_model_dir())
            edge = Edge(settings, bus, Served(settings), tasks)
            clients = Clients(edge)
            for _ in range(options.streams):
                tasks.start_soon(clients.ask)
            while len(edge.inflight) < options.streams:  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.01)
            ids = list(edge.inflight._flights)
            for step in range(options.steps):
                chunks = [TokenChunk(request_id=one, attempt=0, index=step, token_ids=(token_id,)) for one in ids]
                raw = codec.encode(TokenBatch(replica_id="r", step=step, chunks=tuple(chunks)))
                if options.cold:
                    others.translate(None)
                if options.profile and step >= _WARM_UP:
                    profile.enable()
                used.append(await _step_s(edge, clients, raw, options.streams) / options.streams)
                profile.disable()
                for _ in range(_TURNS):  # what was late is not counted with the next step
                    await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    return sorted(used[_WARM_UP:])


def main() -> int:
    """Print what a token costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options, profile = parser.parse_args(), cProfile.Profile()
    used = anyio.run(measure, options, profile, backend_options={"loop_factory": uvloop.new_event_loop})
    if options.profile:
        pstats.Stats(profile).sort_stats("ncalls").print_stats(60)
    low, middle = 1e6 * used[len(used) // 10], 1e6 * used[len(used) // 2]
    print(f"{options.streams} streams: {low:.1f} us a token, median {middle:.1f}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
