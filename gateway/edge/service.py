"""The edge service: opens the bus, loads the models' cards, reads its inbox and serves HTTP until cancelled.

Cancelled, it drains: readiness goes red, new requests are refused, open streams may finish for `drain_s`. The tasks
that feed them (inbox, heartbeats) are shielded for so long.
"""

from __future__ import annotations

from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from gateway.edge.app import build_app
from gateway.edge.edge import Edge
from gateway.edge.served import Served
from gateway.edge.server import serve_http
from gateway.edge.settings import EdgeSettings
from gateway.edge.tenancy.accounts import Accounts
from gateway.edge.tenancy.keyring import Keyring
from gateway.postprocess.safety.store import Policies
from wire import metrics
from wire.bus import Bus
from wire.process import names_setting
from wire.threads import in_thread

_LAST_S = 2.0


async def serve(settings: EdgeSettings, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Run the edge until cancelled, then drain."""
    served = await in_thread(Served, settings)
    policies = await in_thread(_load_policies, settings)
    keyring = await in_thread(_load_keys, settings)
    stop = anyio.Event()
    async with anyio.create_task_group() as outer:
        outer.start_soon(_set_when_cancelled, stop)
        with anyio.CancelScope(shield=True):
            async with Bus.open(settings.redis_url) as bus, anyio.create_task_group() as tasks:
                edge = Edge(settings, bus, served, tasks, policies, Accounts(bus, keyring))
                tasks.start_soon(edge.read_inbox)
                tasks.start_soon(edge.inflight.watch_deadlines)
                if edge.safety is not None:
                    await tasks.start(edge.safety.run)
                tasks.start_soon(edge.accounts.keep)
                if keyring is not None:
                    tasks.start_soon(keyring.watch, settings.api_keys_poll_s)
                tasks.start_soon(edge.background.watch)
                for name in served.bases:
                    tasks.start_soon(edge.watch_replicas, name)
                if settings.adapter_dir:
                    for name in edge.adapters.models:
                        tasks.start_soon(edge.adapters.follow, name)
                with metrics.shows(edge.metrics.registry):
                    await _serve_until(stop, edge, settings, task_status)
                with anyio.move_on_after(_LAST_S):  # what was cut off is cancelled and kept
                    await edge.drain()
                tasks.cancel_scope.cancel()


async def _serve_until(stop: anyio.Event, edge: Edge, settings: EdgeSettings, task_status: TaskStatus[None]) -> None:
    async with anyio.create_task_group() as http:
        await http.start(serve_http, build_app(edge), settings, stop, edge.room)
        task_status.started()
        await stop.wait()
        with anyio.move_on_after(settings.drain_s):
            await edge.drain()
        edge.leave_questions()
        http.cancel_scope.cancel()


async def _set_when_cancelled(stop: anyio.Event) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        stop.set()


def _load_keys(settings: EdgeSettings) -> Keyring | None:
    with names_setting("api_keys", settings.api_keys):
        return Keyring(Path(settings.api_keys).expanduser()) if settings.api_keys else None


def _load_policies(settings: EdgeSettings) -> Policies | None:
    with names_setting("safety_policy", settings.safety_policy):
        return Policies(Path(settings.safety_policy).expanduser()) if settings.safety_policy else None
