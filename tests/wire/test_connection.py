"""Connections: cancelled calls, timeouts, lost and refused connections never give one caller another caller's reply."""

from __future__ import annotations

import random
import ssl
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis
from anyio.abc import ByteStream
from anyio.streams.tls import TLSListener
from redis.asyncio.connection import parse_url

from wire import topics
from wire.bus import Bus, BusOptions, HandOff
from wire.bus.connection import Server
from wire.errors import OverloadedError, StartError, UnavailableError
from wire.messages import Cancel

pytestmark = pytest.mark.anyio

PATIENT = BusOptions(block_s=120.0, reply_timeout_s=130.0, patience_s=100.0)


async def delay(command: list[bytes]) -> None:
    """A server that is far away."""
    if command[0] != b"INFO":
        await anyio.sleep(0.003)


async def test_a_cancelled_call_leaves_no_reply_for_the_next_caller(bus: Bus, make_relay: Any) -> None:
    relay = make_relay()
    dice = random.Random(56)
    right: list[bool] = []

    async def get(number: int, far: Bus) -> None:
        key, patience = f"k{number}", 60.0 if number % 2 else dice.uniform(0.001, 0.5)
        with anyio.move_on_after(patience):
            right.append(await far.route.call(key, "GET", key) == key.encode())

    async def send(number: int, far: Bus) -> None:
        inbox = topics.edge(f"{number}")
        with anyio.move_on_after(dice.uniform(0.001, 0.5)):
            letters = [(inbox, Cancel(request_id=f"{at}", attempt=number)) for at in range(4)]
            right.append(await far.send_many(letters, maxlen=3) == [inbox])

    for number in range(200):
        await bus.route.call(f"k{number}", "SET", f"k{number}", f"k{number}")
    async with anyio.create_task_group() as outer:
        await outer.start(relay.serve)
        async with Bus.open(relay.url, PATIENT) as far:
            relay.after = delay
            async with anyio.create_task_group() as callers:
                for number in range(200):
                    callers.start_soon(get, number, far)
                    if number % 4 == 0:
                        callers.start_soon(send, number, far)
            assert relay.num_lines == 1
            assert len(right) >= 100  # those that had patience
            assert all(right)
            for number in range(20):
                await get(number, far)
            assert all(right)
        outer.cancel_scope.cancel()


async def test_calls_of_one_turn_share_one_line_and_one_failure_to_dial(
    bus_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dialled_for(path: str, outcomes: list[Any]) -> int:
        server, dials = Server(dict(parse_url(path)), PATIENT), []
        dial = server.dial

        async def counted() -> Any:
            dials.append(path)
            return await dial()

        async def call(number: int) -> None:
            try:
                outcomes.append(await server.call("ECHO", f"{number}"))
            except redis.ConnectionError as error:
                outcomes.append(error)

        monkeypatch.setattr(server, "dial", counted)
        async with anyio.create_task_group() as callers:
            for number in range(20):
                callers.start_soon(call, number)
        await server.aclose()
        return len(dials)

    echoes: list[Any] = []
    assert await dialled_for(bus_url, echoes) == 1
    assert echoes == [f"{number}".encode() for number in range(20)]
    failures: list[Any] = []
    assert await dialled_for(f"unix://{tmp_path}/nobody.sock", failures) == 1
    assert [type(failure) for failure in failures] == [redis.ConnectionError] * 20


async def test_an_argument_that_no_command_can_have_costs_nobody_else_a_reply(bus: Bus) -> None:
    faults: list[Exception] = []
    right: list[bool] = []

    async def fail(argument: Any) -> None:
        try:
            await bus.route.call("k", "ECHO", argument)
        except (TypeError, UnicodeEncodeError) as error:
            faults.append(error)

    async def echo(number: int) -> None:
        right.append(await bus.route.call("k", "ECHO", f"{number}") == f"{number}".encode())

    for _ in range(3):  # in one turn of the loop, and after it
        async with anyio.create_task_group() as callers:
            callers.start_soon(echo, 1)
            callers.start_soon(fail, "\ud800")  # half of a character
            callers.start_soon(fail, None)
            callers.start_soon(echo, 2)
    assert right == [True] * 6
    assert len(faults) == 6


async def test_a_cancelled_blocking_read_closes_its_connection(bus: Bus, make_relay: Any) -> None:
    relay = make_relay()
    reading = anyio.Event()

    async def note(command: list[bytes]) -> None:
        if command[0] == b"XREAD":
            reading.set()

    async with anyio.create_task_group() as outer:
        await outer.start(relay.serve)
        async with Bus.open(relay.url, PATIENT) as far:
            relay.before = note

            async def read() -> None:
                async with aclosing(far.inbox("nobody")) as inbox:
                    await anext(inbox)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await reading.wait()
                tasks.cancel_scope.cancel()
            [server] = far.route.servers
            assert server.num_idle == 0
            with anyio.fail_after(60):  # not behind the blocked read
                assert await far.route.call("k", "GET", "k") is None
        outer.cancel_scope.cancel()


@pytest.mark.parametrize("blocking", [False, True])
async def test_what_is_under_way_when_a_server_is_left_ends_and_then_closes_its_line(
    make_relay: Any, blocking: bool
) -> None:
    relay, came, go_on = make_relay(), anyio.Event(), anyio.Event()

    async def hold(command: list[bytes]) -> None:
        if command[0] == b"ECHO":
            came.set()
            await go_on.wait()

    relay.before = hold
    said: list[bytes] = []
    async with anyio.create_task_group() as outer:
        await outer.start(relay.serve)
        server = Server(parse_url(relay.url), PATIENT)

        async def ask() -> None:
            said.append(await (server.call_blocking if blocking else server.call)("ECHO", "x"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await came.wait()
            server.leave()
            go_on.set()
        await relay.until_left()
        outer.cancel_scope.cancel()
    assert said == [b"x"]


async def test_a_blocking_read_outlasts_many_blocks_without_a_false_timeout(make_relay: Any) -> None:
    options = BusOptions(block_s=0.1, reply_timeout_s=0.5, patience_s=60.0)
    relay, outlasted = make_relay(), anyio.Event()
    on_line = [0, 0]

    async def count(command: list[bytes]) -> None:
        if command[0] == b"XREAD":
            on_line[:] = [relay.num_lines, on_line[1] + 1 if relay.num_lines == on_line[0] else 1]
            if on_line[1] * options.block_s > 1.5 * options.reply_timeout_s:
                outlasted.set()

    async with anyio.create_task_group() as outer:
        await outer.start(relay.serve)
        async with Bus.open(relay.url, options) as far, anyio.create_task_group() as tasks:
            relay.before = count
            tasks.start_soon(anext, far.inbox("nobody"))
            await outlasted.wait()  # so many blocks on one line
            tasks.cancel_scope.cancel()
        outer.cancel_scope.cancel()


def test_a_blocking_read_may_not_outlast_the_reply_timeout() -> None:
    with pytest.raises(ValueError, match="block_s"):
        BusOptions(block_s=1.5, reply_timeout_s=1.0)
    with pytest.raises(ValueError, match="block_s"):
        BusOptions(block_s=0)


async def test_a_reply_that_never_comes_costs_one_connection_and_not_the_call(bus: Bus, make_relay: Any) -> None:
    relay = make_relay()
    held: list[bytes] = []

    async def hold_the_first(command: list[bytes]) -> None:
        if command[0] == b"GET" and not held:
            held.append(command[0])
            await anyio.sleep_forever()

    options = BusOptions(block_s=0.05, reply_timeout_s=0.1, patience_s=60.0)
    async with anyio.create_task_group() as outer:
        await outer.start(relay.serve)
        async with Bus.open(relay.url, options) as far:
            relay.before = hold_the_first
            num_lines = relay.num_lines
            await bus.route.call("k", "SET", "k", "v")
            assert await far.route.call("k", "GET", "k") == b"v"
            assert held
            assert relay.num_lines > num_lines
        outer.cancel_scope.cancel()


async def test_idle_connections_that_the_server_closed_are_replaced(bus: Bus, bus_url: str) -> None:
    await bus.route.call("k", "SET", "k", "v")
    with redis.Redis.from_url(bus_url) as client:
        client.client_kill_filter(_type="normal", skipme=True)
    assert await bus.route.call("k", "GET", "k") == b"v"


async def test_a_server_that_is_away_is_reported_after_the_patience(tmp_path: Any) -> None:
    options = BusOptions(patience_s=0.1)
    with anyio.fail_after(60), pytest.raises(UnavailableError, match="does not answer"):
        async with Bus.open(f"unix://{tmp_path}/nobody.sock", options):
            pass


async def test_wrong_credentials_are_reported_at_once(bus_url: str) -> None:
    wrong = bus_url.replace("unix://", "unix://somebody:wrong@")
    with anyio.fail_after(60), pytest.raises(UnavailableError, match="refuses"):
        async with Bus.open(wrong, BusOptions(patience_s=3600)):
            pass


async def _pour(source: ByteStream, sink: ByteStream) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            await sink.send(await source.receive())


async def test_tls_is_spoken_where_the_url_says_so_and_the_certificate_is_checked(bus: Bus, bus_url: str) -> None:
    """The bundled server speaks no TLS; a relay adds it, as a stunnel would."""
    identity = Path(__file__).with_name("localhost.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(identity)

    async def relay(client: ByteStream) -> None:
        upstream = await anyio.connect_unix(bus_url.removeprefix("unix://"))
        async with client, upstream, anyio.create_task_group() as both:
            both.start_soon(_pour, client, upstream)
            await _pour(upstream, client)
            both.cancel_scope.cancel()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with TLSListener(listener, context, standard_compatible=False) as safe, anyio.create_task_group() as tasks:
        tasks.start_soon(safe.serve, relay)
        url = f"rediss://127.0.0.1:{port}"
        async with Bus.open(f"{url}?ssl_ca_certs={identity}") as far:
            assert await far.secret("x") == await bus.secret("x")
        with pytest.raises(UnavailableError, match="certificate"):
            async with Bus.open(url, BusOptions(patience_s=0.1, reply_timeout_s=60.0, connect_timeout_s=60.0)):
                pass
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("url", ["", "http://localhost", "localhost:6379", "redis://:pa/ss@localhost", "redis://h:x"])
async def test_what_is_no_address_of_a_bus_is_refused_with_what_would_be_one_and_never_quoted(url: str) -> None:
    with pytest.raises(StartError, match=r"^redis_url is .* redis://HOST:PORT") as refused:
        async with Bus.open(url):
            pass
    assert not url or url not in str(refused.value)


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
async def test_a_name_that_no_host_can_have_is_said_at_once(host: str) -> None:
    with anyio.fail_after(60), pytest.raises(UnavailableError, match="is no host name"):
        async with Bus.open(f"redis://{host}", BusOptions(patience_s=0.1, reply_timeout_s=3600.0)):
            pass


async def test_a_server_without_memory_refuses_and_loses_nothing(bus: Bus, make_job: Any, bus_url: str) -> None:
    history, tokenizer = topics.history(0), topics.tokenizer(0, "m")
    await bus.admit(make_job(), {}, to=history, ttl_s=60)
    [held] = await bus.consumer(history, group="g", name="one").read(1)
    with redis.Redis.from_url(bus_url) as client:
        client.config_set("maxmemory", "1")
        try:
            with pytest.raises(OverloadedError):
                await bus.admit(make_job("r2"), {}, to=history, ttl_s=60)
            with pytest.raises(OverloadedError):
                await bus.send(topics.edge("e"), make_job(), maxlen=10)
            if await _hands_off(bus, held, make_job(), tokenizer):
                history = tokenizer
        finally:
            client.config_set("maxmemory", "0")
    assert await bus.route.call(history, "XLEN", history) == 1


async def _hands_off(bus: Bus, held: Any, job: Any, to: str) -> bool:
    try:
        return await bus.hand_off(held, job, to=to) is HandOff.DONE
    except OverloadedError:
        return False


async def test_a_lost_reply_to_an_admission_or_hand_off_is_no_second_one(
    bus: Bus, make_job: Any, make_relay: Any
) -> None:
    relay = make_relay()
    cuts: list[bytes] = []

    async def lose_every_other(command: list[bytes]) -> None:
        if command[0] in (b"EVALSHA", b"EVAL"):
            cuts.append(command[0])
            if len(cuts) % 2:
                await relay.cut()

    history, tokenizer = topics.history(0), topics.tokenizer(0, "m")
    async with anyio.create_task_group() as outer:
        await outer.start(relay.serve)
        async with Bus.open(relay.url, bus.options) as far:
            relay.after = lose_every_other
            assert await far.admit(make_job(), {}, to=history, ttl_s=60)
            [held] = await bus.consumer(history, group="g", name="one").read(1)
            assert await far.hand_off(held, make_job(), to=tokenizer) in (HandOff.DONE, HandOff.LOST)
        outer.cancel_scope.cancel()
    assert len(cuts) >= 4
    assert await bus.route.call(history, "XLEN", history) == 0
    assert await bus.route.call(tokenizer, "XLEN", tokenizer) == 1


@pytest.mark.parametrize(
    "why",
    [
        "MISCONF Errors writing to the AOF file: No space left on device",
        "NOREPLICAS Not enough good replicas to write.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    ],
)
async def test_a_server_that_takes_no_writes_now_is_waited_for(bus: Bus, why: str) -> None:
    script = "if redis.call('INCR', KEYS[1]) < 3 then return redis.error_reply(ARGV[1]) end return 7"
    assert await bus.route.call("k", "EVAL", script, 1, "k", why) == 7


async def test_a_server_that_takes_no_writes_for_long_is_told_as_a_bus_that_is_away(bus_url: str) -> None:
    async with Bus.open(bus_url, BusOptions(patience_s=0.0)) as hasty:
        with pytest.raises(UnavailableError, match="No space left"):
            await hasty.route.call("k", "EVAL", "return redis.error_reply('MISCONF No space left')", 1, "k")
