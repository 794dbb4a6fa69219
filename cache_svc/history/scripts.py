"""The Lua scripts of the history: whatever must be seen or written together.

Parts of a turn in the hash `turns`, by letter: `a:` attempt and parent ("2 resp_..."; parent "-": none, "@5": in the
conversation, after its first 5 turns), `s:` said, `m:` meta, `i:` token ids, `k:` number of children, `d:` deleted.
`i:@` and `v:@` are the ids of the conversation's newest prompt and how many turns they hold.
A mark in `pending`: number in order of admission, deadline, turns seen (-1: none yet, -2: one that was taken back),
overdue, parent, request, model.
All scripts may run twice with the same arguments.
"""

from __future__ import annotations

import hashlib

from wire.bus.scripts import Script

_MARK = "'^(%d+) (%d+) (%-?%d+) (%d) (%S+) (%S+) (.*)$'"


def _script(text: str) -> Script:
    text = text.replace("MARK", _MARK)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


ADMIT = _script("""
-- KEYS head, pending. ARGV tenant, conversation, parent, turn, deadline ms, now ms, request, model.
-- 1, or 0: the conversation, or whatever holds the parent, is not there (for this tenant).
local tenant = redis.call('HGET', KEYS[1], 'tenant')
if tenant and tenant ~= ARGV[1] then return 0 end
local lifetime = math.max(ARGV[5] - ARGV[6], 0) + 3600000
if not tenant then
  if ARGV[2] ~= '' or ARGV[3] ~= '-' then return 0 end
  redis.call('HSET', KEYS[1], 'tenant', ARGV[1])
  redis.call('PEXPIRE', KEYS[1], lifetime)
end
if ARGV[2] ~= '' and redis.call('HGET', KEYS[1], 'conversation') ~= ARGV[2] then return 0 end
if redis.call('HEXISTS', KEYS[2], ARGV[4]) == 1 then return 1 end
local number = redis.call('HINCRBY', KEYS[1], 'admitted', 1)
local mark = string.format('%d %s -1 0 %s %s %s', number, ARGV[5], ARGV[3], ARGV[7], ARGV[8])
redis.call('HSET', KEYS[2], ARGV[4], mark)
if redis.call('PTTL', KEYS[2]) < lifetime then redis.call('PEXPIRE', KEYS[2], lifetime) end
return 1
""")

RECALL_CONVERSATION = _script("""
-- KEYS head, turns, order, pending. ARGV tenant, conversation, own turn, now ms, patience ('0': none).
-- {missing}, {pending, request, ...}, or {ok, number of turns, ids, how many turns they hold, said, ...}, oldest first.
if redis.call('HGET', KEYS[1], 'tenant') ~= ARGV[1] then return {'missing'} end
if redis.call('HGET', KEYS[1], 'conversation') ~= ARGV[2] then return {'missing'} end
local now = tonumber(ARGV[4])
local own = redis.call('HGET', KEYS[4], ARGV[3])
local limit = own and tonumber(string.match(own, '^%d+')) or math.huge
local marks = redis.call('HGETALL', KEYS[4])
local waiting = {'pending'}
for at = 1, #marks, 2 do
  local number, deadline, seen, overdue, parent, request, model = string.match(marks[at + 1], MARK)
  if tonumber(deadline) + 3600000 < now then
    redis.call('HDEL', KEYS[4], marks[at])
  elseif tonumber(number) < limit and overdue == '0' and parent == '-' and tonumber(deadline) > now then
    waiting[#waiting + 1] = request
    if ARGV[5] == '0' then
      redis.call('HSET', KEYS[4], marks[at], table.concat({number, deadline, seen, '1', parent, request, model}, ' '))
    end
  end
end
if #waiting > 1 and ARGV[5] ~= '0' then return waiting end
local order = redis.call('LRANGE', KEYS[3], 0, -1)
if own then
  local number, deadline, _, overdue, parent, request, model = string.match(own, MARK)
  redis.call('HSET', KEYS[4], ARGV[3], table.concat({number, deadline, #order, overdue, parent, request, model}, ' '))
end
local ids = redis.call('HMGET', KEYS[2], 'i:@', 'v:@')
local found = {'ok', #order, ids[1] or '', tonumber(ids[2] or 0)}
for _, turn in ipairs(order) do found[#found + 1] = redis.call('HGET', KEYS[2], 's:' .. turn) or '' end
return found
""")

RECALL_CHAIN = _script("""
-- KEYS head, turns, order, pending. ARGV tenant, turn, now ms, patience ('0': do not wait), ids only ('1').
-- {missing}, {pending, request}, {conflict}, {broken}, or {ok, said, ids, said, ids, ...}, newest first.
if redis.call('HGET', KEYS[1], 'tenant') ~= ARGV[1] then return {'missing'} end
local turn = ARGV[2]
if redis.call('HEXISTS', KEYS[2], 'a:' .. turn) == 0 then
  local mark = redis.call('HGET', KEYS[4], turn)
  if not mark then return {'missing'} end
  local number, deadline, seen, overdue, parent, request, model = string.match(mark, MARK)
  if tonumber(deadline) <= tonumber(ARGV[3]) then return {'missing'} end
  if overdue == '0' and ARGV[4] ~= '0' then return {'pending', request} end
  redis.call('HSET', KEYS[4], turn, table.concat({number, deadline, seen, '1', parent, request, model}, ' '))
  return {'conflict'}
end
if redis.call('HEXISTS', KEYS[2], 'd:' .. turn) == 1 and ARGV[5] ~= '1' then return {'missing'} end
local found = {'ok'}
local function add(turn)
  local said = redis.call('HGET', KEYS[2], 's:' .. turn)
  if not said then return false end
  found[#found + 1] = ARGV[5] == '1' and '' or said
  found[#found + 1] = redis.call('HGET', KEYS[2], 'i:' .. turn) or ''
  return true
end
while true do
  if not add(turn) then return {'broken'} end
  local parent = string.match(redis.call('HGET', KEYS[2], 'a:' .. turn), ' (%S+)$')
  if parent == '-' then return found end
  if string.sub(parent, 1, 1) == '@' then
    local seen = tonumber(string.sub(parent, 2))
    local order = seen > 0 and redis.call('LRANGE', KEYS[3], 0, seen - 1) or {}
    for at = #order, 1, -1 do
      if not add(order[at]) then return {'broken'} end
    end
    return found
  end
  turn = parent
end
""")

STORE = _script("""
-- KEYS head, turns, order, at, pending. ARGV tenant, conversation, parent, turn, attempt, now ms, ttl ms,
-- in order ('1'), title, said, meta, ids, item id, ...
-- 1 stored, 2 known already (or by a later attempt), 0 what it belongs to is gone.
local tenant = redis.call('HGET', KEYS[1], 'tenant')
if tenant and tenant ~= ARGV[1] then return 0 end
if not tenant and (ARGV[2] ~= '' or ARGV[3] ~= '-') then return 0 end
if ARGV[2] ~= '' and redis.call('HGET', KEYS[1], 'conversation') ~= ARGV[2] then return 0 end
local turn = ARGV[4]
local mark = redis.call('HGET', KEYS[5], turn)
if redis.call('HEXISTS', KEYS[2], 'd:' .. turn) == 1 then return 2 end
local address = redis.call('HGET', KEYS[2], 'a:' .. turn)
if address and tonumber(string.match(address, '^%d+')) >= tonumber(ARGV[5]) then return 2 end

redis.call('HSET', KEYS[1], 'tenant', ARGV[1])
local parent = ARGV[3]
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[1], 'updated', ARGV[6])
  local length = redis.call('LLEN', KEYS[3])
  local seen = mark and tonumber(({string.match(mark, MARK)})[3]) or -1
  local stale = seen == -2
  if address then seen = tonumber(string.match(address, '@(%d+)$')) elseif seen < 0 then seen = length end
  parent = '@' .. seen
  local at = redis.call('LPOS', KEYS[3], turn)
  if not at and ARGV[8] == '1' then
    at = length
    length = redis.call('RPUSH', KEYS[3], turn)
    redis.call('HINCRBY', KEYS[1], 'num_turns', 1)
  end
  if ARGV[12] ~= '' and not stale and at == seen and at == length - 1 then
    redis.call('HSET', KEYS[2], 'i:@', ARGV[12], 'v:@', length)
  elseif at and at < tonumber(redis.call('HGET', KEYS[2], 'v:@') or 0) then
    redis.call('HDEL', KEYS[2], 'i:@', 'v:@')
  end
  for item = 13, #ARGV do redis.call('HSET', KEYS[4], ARGV[item], turn) end
elseif ARGV[12] ~= '' then
  redis.call('HSET', KEYS[2], 'i:' .. turn, ARGV[12])
end
if not address and ARGV[3] ~= '-' then redis.call('HINCRBY', KEYS[2], 'k:' .. ARGV[3], 1) end
redis.call('HSET', KEYS[2], 'a:' .. turn, ARGV[5] .. ' ' .. parent, 's:' .. turn, ARGV[10], 'm:' .. turn, ARGV[11])
if ARGV[9] ~= '' then redis.call('HSETNX', KEYS[1], 'title', ARGV[9]) end
redis.call('HDEL', KEYS[5], turn)
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[7]) end
return 1
""")

CREATE = _script("""
-- KEYS head, turns, order, at. ARGV tenant, conversation, now ms, ttl ms, title, metadata, said, item id, ...
redis.call('HSETNX', KEYS[1], 'created', ARGV[3])
redis.call('HSET', KEYS[1], 'tenant', ARGV[1], 'conversation', ARGV[2], 'updated', ARGV[3], 'metadata', ARGV[6])
if ARGV[5] ~= '' then redis.call('HSET', KEYS[1], 'title', ARGV[5]) end
if ARGV[7] ~= '' and redis.call('HSETNX', KEYS[2], 's:first', ARGV[7]) == 1 then
  redis.call('RPUSH', KEYS[3], 'first')
  for item = 8, #ARGV do redis.call('HSET', KEYS[4], ARGV[item], 'first') end
end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[4]) end
return 1
""")

UPDATE = _script("""
-- KEYS head, turns, order, at. ARGV tenant, conversation, now ms, ttl ms, metadata. 0 if it is not there.
if redis.call('HGET', KEYS[1], 'tenant') ~= ARGV[1] then return 0 end
if redis.call('HGET', KEYS[1], 'conversation') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'metadata', ARGV[5], 'updated', ARGV[3])
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[4]) end
return 1
""")

DELETE_CONVERSATION = _script("""
-- KEYS head, turns, order, at, pending. ARGV tenant, conversation. 0 if it is not there.
if redis.call('HGET', KEYS[1], 'tenant') ~= ARGV[1] then return 0 end
if redis.call('HGET', KEYS[1], 'conversation') ~= ARGV[2] then return 0 end
redis.call('DEL', unpack(KEYS))
return 1
""")

PAGE_ITEMS = _script("""
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

READ_TURN = _script("""
-- KEYS head, turns, pending. ARGV tenant, turn, now ms.
-- {missing}, {pending, request, model}, or {ok, said, meta}.
if redis.call('HGET', KEYS[1], 'tenant') ~= ARGV[1] then return {'missing'} end
local turn = ARGV[2]
if redis.call('HEXISTS', KEYS[2], 'd:' .. turn) == 1 then return {'missing'} end
local parts = redis.call('HMGET', KEYS[2], 's:' .. turn, 'm:' .. turn, 'a:' .. turn)
if parts[3] then return {'ok', parts[1], parts[2]} end
local mark = redis.call('HGET', KEYS[3], turn)
if not mark then return {'missing'} end
local _, deadline, _, _, _, request, model = string.match(mark, MARK)
if tonumber(deadline) <= tonumber(ARGV[3]) then return {'missing'} end
return {'pending', request, model}
""")

DELETE_TURN = _script("""
-- KEYS head, turns, order, pending. ARGV tenant, turn. 1 deleted, 0 not there, 2 still being generated.
-- What a later response builds on stays until that one goes too. The newest turn of a conversation leaves it; an
-- earlier one stays in it, since what followed was said after it. A turn under way that has seen what leaves is marked
-- (-2): its ids must not be kept.
if redis.call('HGET', KEYS[1], 'tenant') ~= ARGV[1] then return 0 end
local turn = ARGV[2]
if redis.call('HEXISTS', KEYS[2], 'd:' .. turn) == 1 then return 0 end
local address = redis.call('HGET', KEYS[2], 'a:' .. turn)
if not address then return redis.call('HEXISTS', KEYS[4], turn) == 1 and 2 or 0 end
redis.call('HSET', KEYS[2], 'd:' .. turn, '1')
redis.call('HDEL', KEYS[2], 'm:' .. turn)
local leaves = redis.call('LINDEX', KEYS[3], -1) == turn
if leaves then
  redis.call('RPOP', KEYS[3])
  redis.call('HINCRBY', KEYS[1], 'num_turns', -1)
end
local length = redis.call('LLEN', KEYS[3])
if leaves and tonumber(redis.call('HGET', KEYS[2], 'v:@') or 0) > length then
  redis.call('HDEL', KEYS[2], 'i:@', 'v:@')
end
local awaited = {}
local marks = redis.call('HGETALL', KEYS[4])
for at = 1, #marks, 2 do
  local number, deadline, seen, overdue, parent, request, model = string.match(marks[at + 1], MARK)
  awaited[parent] = true
  if leaves and parent == '-' and tonumber(seen) > length then
    redis.call('HSET', KEYS[4], marks[at], table.concat({number, deadline, -2, overdue, parent, request, model}, ' '))
  end
end
while true do
  local parent = string.match(address, ' (%S+)$')
  local kept = awaited[turn] or tonumber(redis.call('HGET', KEYS[2], 'k:' .. turn) or 0) > 0
  if kept or (string.sub(parent, 1, 1) == '@' and not leaves) then return 1 end
  if redis.call('HEXISTS', KEYS[2], 'd:' .. turn) == 0 then return 1 end
  redis.call('HDEL', KEYS[2], 's:' .. turn, 'i:' .. turn, 'k:' .. turn)
  if parent == '-' or string.sub(parent, 1, 1) == '@' then return 1 end
  redis.call('HINCRBY', KEYS[2], 'k:' .. parent, -1)
  turn = parent
  address = redis.call('HGET', KEYS[2], 'a:' .. turn)
  if not address then return 1 end
end
""")
