"""The items of a conversation: the pieces that its turns are made of."""

from __future__ import annotations

from cache_svc.history.scripts.pictures import HOLDING
from wire.bus.script import Script

PAGE_ITEMS = Script("""
-- KEYS head, turns, order, at. ARGV tenant, conversation, after ('' none), order, number of turns.
-- {missing}, {unknown}: no item `after`, or {ok, turn, said, turn, said, ...}, beginning with the turn of `after`.
if redis.call('HGET', KEYS[1], 'tenant') ~= ARGV[1] then return {'missing'} end
if redis.call('HGET', KEYS[1], 'conversation') ~= ARGV[2] then return {'missing'} end
local at = ARGV[4] == 'asc' and 0 or redis.call('LLEN', KEYS[3]) - 1
if ARGV[3] ~= '' then
  local turn = redis.call('HGET', KEYS[4], ARGV[3])
  at = turn and redis.call('LPOS', KEYS[3], turn)
  if not at then return {'unknown'} end
end
local found = {'ok'}
local step = ARGV[4] == 'asc' and 1 or -1
for _ = 1, ARGV[5] do
  if at < 0 then break end
  local turn = redis.call('LINDEX', KEYS[3], at)
  if not turn then break end
  found[#found + 1] = turn
  found[#found + 1] = redis.call('HGET', KEYS[2], 's:' .. turn) or ''
  at = at + step
end
return found
""")

FIND_ITEM = Script("""
-- KEYS head, turns, order, at. ARGV tenant, conversation ('' any), item. The turn and what was said, or nothing.
if redis.call('HGET', KEYS[1], 'tenant') ~= ARGV[1] then return false end
local turn = redis.call('HGET', KEYS[4], ARGV[3])
if not turn or redis.call('HEXISTS', KEYS[2], 'd:' .. turn) == 1 then return false end
if ARGV[2] ~= '' then
  if redis.call('HGET', KEYS[1], 'conversation') ~= ARGV[2] then return false end
  if not redis.call('LPOS', KEYS[3], turn) then return false end
end
return {turn, redis.call('HGET', KEYS[2], 's:' .. turn) or ''}
""")

REPLACE_SAID = Script(
    HOLDING
    + """
-- KEYS head, turns, order, at. ARGV tenant, conversation, turn, old said, new said, nothing left ('1'), item, now ms,
-- title of what is left, words of the pictures that are left.
-- This turn and all that were said after it, or nothing: it has changed meanwhile, or is gone. Token ids of these turns
-- hold the item's words and go too.
if redis.call('HGET', KEYS[1], 'tenant') ~= ARGV[1] then return false end
if redis.call('HGET', KEYS[1], 'conversation') ~= ARGV[2] then return false end
local turn = ARGV[3]
local at = redis.call('LPOS', KEYS[3], turn)
if not at or redis.call('HGET', KEYS[2], 's:' .. turn) ~= ARGV[4] then return false end
local said = redis.call('LRANGE', KEYS[3], at, -1)
for _, later in ipairs(said) do redis.call('HDEL', KEYS[2], 'i:' .. later) end
redis.call('HSET', KEYS[2], 's:' .. turn, ARGV[5])
hold(KEYS[2], turn, 10, #ARGV)
redis.call('HDEL', KEYS[4], ARGV[7])
redis.call('HSET', KEYS[1], 'updated', ARGV[8])
if redis.call('HGET', KEYS[1], 'titled') == turn then
  if ARGV[9] ~= '' then redis.call('HSET', KEYS[1], 'title', ARGV[9])
  else redis.call('HDEL', KEYS[1], 'title', 'titled') end
end
if ARGV[6] == '1' then
  redis.call('LREM', KEYS[3], 1, turn)
  redis.call('HSET', KEYS[2], 'd:' .. turn, '1')
  redis.call('HDEL', KEYS[2], 'm:' .. turn)
  if turn ~= 'first' then redis.call('HINCRBY', KEYS[1], 'num_turns', -1) end
end
return said
"""
)
