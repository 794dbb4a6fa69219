"""The history on a Redis Cluster of three real servers: conversations spread over them, each in one slot."""

from __future__ import annotations

import anyio
import pytest

from cache_svc.history.desk import HistoryDesk
from cache_svc.history.keys import keys_of, root_of
from cache_svc.history.service import serve_streams
from cache_svc.history.settings import HistorySettings
from tests.cache_svc.history.conftest import MODEL, PlayedEdge
from tests.wire.conftest import cluster_url  # noqa: F401 - a fixture
from wire.bus import Bus, BusOptions

pytestmark = pytest.mark.anyio

OPTIONS = BusOptions(block_s=0.1, reply_timeout_s=30.0, patience_s=60.0, claim_idle_s=3600.0)


async def test_conversations_and_chains_live_and_die_on_all_servers_of_a_cluster(cluster_url: str) -> None:  # noqa: F811
    settings = HistorySettings(models=(MODEL,), history_rewrite_s=0.0)
    async with Bus.open(cluster_url, OPTIONS) as bus, anyio.create_task_group() as tasks:
        desk = HistoryDesk(bus, settings)
        await tasks.start(serve_streams, bus, settings, desk)
        edge = PlayedEdge(bus)
        made = [await edge.create() for _ in range(8)]
        owners = {id(bus.route.owner(keys_of(root_of(conversation) or "").head)) for conversation in made}
        assert len(owners) > 1
        for conversation in made:
            response = await edge.say(conversation, "q", "a", ids=[1, 2])
            branch = await edge.say(response, "q2", "a2", ids=[1, 2, 3])
            assert [message.content for message in (await edge.recall(branch)).messages] == ["q", "a", "q2", "a2"]
            assert await edge.texts(conversation) == ["q", "a"]
        assert {item["id"] for item in (await edge.call("list_conversations"))["data"]} == set(made)
        for conversation in made:
            await edge.call("delete_conversation", id=conversation)
        assert (await edge.call("list_conversations"))["data"] == []
        with anyio.fail_after(60):
            while desk.rewriter.num_rewrites < 3:  # every server has its own append-only file
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
