"""Limits of keys, shared over all edges: two token buckets and the open requests of each key, in Redis.

One script lets a request in or says why not. It takes from the buckets what the request may use at most: an estimate of
its prompt, and its `max_tokens`. What it did not use comes back when it ends, what it used beyond is owed. A request
whose edge died leaves when another edge accounts for it (`Accounts.keep`), or when its time is up. A request that could
never be paid waits for a full bucket.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec

from gateway.edge.tenancy.key_file import ApiKey
from wire.bus.route import Route
from wire.bus.script import Script
from wire.messages import ID_BYTES, Request
from wire.topics import PREFIX

_CHARS_PER_TOKEN = 4
_MINUTE_S = 60.0


ENTER = Script("""
-- KEYS rate, open. ARGV request, requests a minute, tokens a minute, concurrent (0: no limit), tokens wanted, lease s.
-- Answers: why not (0: it may), requests left, tokens left, requests open before. May run twice for a request.
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local most = {tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])}
local wanted = math.min(tonumber(ARGV[5]), most[2])
local state = redis.call('HMGET', KEYS[1], 'requests', 'tokens', 'at')
local passed = math.max(0, now - (tonumber(state[3]) or now)) / 60
local requests = math.min(most[1], (tonumber(state[1]) or most[1]) + passed * most[1])
local tokens = math.min(most[2], (tonumber(state[2]) or most[2]) + passed * most[2])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local open = redis.call('ZCARD', KEYS[2])
local why = 0
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then
  if most[3] > 0 and open >= most[3] then why = 3
  elseif most[1] > 0 and requests < 1 then why = 1
  elseif most[2] > 0 and tokens < wanted then why = 2
  else
    requests, tokens = requests - 1, tokens - wanted
    redis.call('ZADD', KEYS[2], now + ARGV[6], ARGV[1])
    redis.call('EXPIRE', KEYS[2], 86400)
  end
end
redis.call('HSET', KEYS[1], 'requests', requests, 'tokens', tokens, 'at', now)
redis.call('EXPIRE', KEYS[1], 3600)
return {why, tostring(requests), tostring(tokens), open}
""")

LEAVE = Script("""
-- KEYS rate, open. ARGV request, tokens a minute, tokens taken, tokens used. Once for each request that is in.
if redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then return 0 end
local tokens = tonumber(redis.call('HGET', KEYS[1], 'tokens'))
if tokens then
  local taken = math.min(tonumber(ARGV[3]), tonumber(ARGV[2]))
  redis.call('HSET', KEYS[1], 'tokens', math.min(tonumber(ARGV[2]), tokens + taken - ARGV[4]))
end
return 1
""")


class Why(enum.IntEnum):
    """Why a request may not go in."""

    ALLOWED = 0
    REQUESTS = 1
    TOKENS = 2
    CONCURRENT = 3


class Standing(NamedTuple):
    """What a key has left. Times are until it is full again, or (`retry_s`) until the request could go in."""

    why: Why
    requests: int
    tokens: int
    requests_reset_s: float
    tokens_reset_s: float
    retry_s: float


class Limits:
    """The limits of all keys."""

    def __init__(self, route: Route) -> None:
        self._route = route

    async def enter(self, key: ApiKey, request_id: str, wanted: int, *, lease_s: float) -> Standing:
        """Let a request in that may use `wanted` tokens, or say why not, in one round trip."""
        limits = (key.requests_per_minute, key.tokens_per_minute, key.max_concurrent)
        why, requests, tokens, _open = await self._route.run(ENTER, _keys(key), request_id, *limits, wanted, lease_s)
        return _standing(key, Why(why), float(requests), float(tokens), wanted)

    async def leave(self, key: ApiKey, request_id: str, wanted: int, *, used: int) -> None:
        """Give back what a request did not use."""
        await self._route.run(LEAVE, _keys(key), request_id, key.tokens_per_minute, wanted, used)


def tokens_wanted(request: Request) -> int:
    """Estimate what a request may use at most; a `max_tokens` that is not given counts nothing until it is used."""
    sampling = request.sampling
    num_chars = sum(len(message.content) for message in request.messages) + len(request.instructions or "")
    num_chars += len(msgspec.json.encode(request.tools)) if request.tools else 0
    num_chars += len(request.prompt_text) + sum(len(text) for text in request.inputs if isinstance(text, str))
    if request.kind == "score" and request.pairs is not None and request.pairs.num_queries == 1:
        num_chars += len(request.inputs[0]) * (len(request.inputs) - 2)  # the query is read with each document
    num_ids = len(request.prompt_ids) // ID_BYTES + sum(len(ids) for ids in request.inputs if not isinstance(ids, str))
    return num_ids + num_chars // _CHARS_PER_TOKEN + sampling.n * (sampling.max_tokens or 0)


def _keys(key: ApiKey) -> tuple[str, str]:
    start = f"{PREFIX}:{{key:{key.id}}}"
    return f"{start}:rate", f"{start}:open"


def _standing(key: ApiKey, why: Why, requests: float, tokens: float, wanted: int) -> Standing:
    per_request_s = _MINUTE_S / key.requests_per_minute if key.requests_per_minute else 0.0
    per_token_s = _MINUTE_S / key.tokens_per_minute if key.tokens_per_minute else 0.0
    waits = {
        Why.REQUESTS: (1 - requests) * per_request_s,
        Why.TOKENS: (min(wanted, key.tokens_per_minute) - tokens) * per_token_s,
        Why.CONCURRENT: 1.0,
    }
    return Standing(
        why,
        max(0, int(requests)),
        max(0, int(tokens)),
        (key.requests_per_minute - requests) * per_request_s,
        (key.tokens_per_minute - tokens) * per_token_s,
        waits.get(why, 0.0),
    )
