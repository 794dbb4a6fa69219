"""Conversations as a whole."""

from __future__ import annotations

from cache_svc.history.scripts.pictures import HOLDING
from wire.bus.script import Script

CREATE = Script(
    HOLDING
    + """
-- KEYS head, turns, order, at. ARGV tenant, conversation, now ms, ttl ms, title, metadata, said,
-- number of the words that follow of pictures, these, item id, ...
redis.call('HSETNX', KEYS[1], 'created', ARGV[3])
redis.call('HSET', KEYS[1], 'tenant', ARGV[1], 'conversation', ARGV[2], 'updated', ARGV[3], 'metadata', ARGV[6])
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'title', ARGV[5], 'titled', 'first') end
if ARGV[7] ~= '' and redis.call('HSETNX', KEYS[2], 's:first', ARGV[7]) == 1 then
  redis.call('HSET', KEYS[2], 'a:first', '0 -')
  redis.call('RPUSH', KEYS[3], 'first')
  local words = tonumber(ARGV[8])
  hold(KEYS[2], 'first', 9, 8 + words)
  for item = 9 + words, #ARGV do redis.call('HSET', KEYS[4], ARGV[item], 'first') end
end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[4]) end
return 1
"""
)

UPDATE = Script("""
-- KEYS head, turns, order, at. ARGV tenant, conversation, now ms, ttl ms, metadata. 0 if it is not there.
if redis.call('HGET', KEYS[1], 'tenant') ~= ARGV[1] then return 0 end
if redis.call('HGET', KEYS[1], 'conversation') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'metadata', ARGV[5], 'updated', ARGV[3])
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[4]) end
return 1
""")

DELETE_CONVERSATION = Script("""
-- KEYS head, turns, order, at, pending. ARGV tenant, conversation. Nothing if it is not there, or its turns.
if redis.call('HGET', KEYS[1], 'tenant') ~= ARGV[1] then return false end
if redis.call('HGET', KEYS[1], 'conversation') ~= ARGV[2] then return false end
local found = redis.call('HKEYS', KEYS[5])
for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
  if string.sub(field, 1, 2) == 'a:' then found[#found + 1] = string.sub(field, 3) end
end
redis.call('DEL', unpack(KEYS))
return found
""")
