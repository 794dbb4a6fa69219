"""The Lua scripts of the history: whatever must be seen or written together.

Turns form a tree: each names the turn that its prompt ended with (its parent). A conversation is a tree too, with an
order of those turns that belong to it; two writers at once give two turns the same parent, and the order has both.
Parts of a turn in the hash `turns`, by letter: `a:` attempt and parent ("2 resp_...", "-" for none; "~" before a parent
that does not count this turn as a child), `s:` said, `m:` meta, `i:` token ids, `k:` number of children, `d:` deleted.
A mark in `pending`: number in order of admission, deadline, last turn seen ("?": not looked yet), overdue, parent,
request, model. All scripts may run twice with the same arguments.

Long: the scripts share these letters and marks, so they stand side by side.
"""

from __future__ import annotations

import hashlib

from wire.bus.scripts import Script

_MARK = "'^(%d+) (%d+) (%S+) (%d) (%S+) (%S+) (.*)$'"


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
local mark = string.format('%d %s ? 0 %s %s %s', number, ARGV[5], ARGV[3], ARGV[7], ARGV[8])
redis.call('HSET', KEYS[2], ARGV[4], mark)
if redis.call('PTTL', KEYS[2]) < lifetime then redis.call('PEXPIRE', KEYS[2], lifetime) end
return 1
""")

RECALL_CONVERSATION = _script("""
-- KEYS head, turns, order, pending. ARGV tenant, conversation, own turn, now ms, patience ('0': none).
-- {missing}, {pending, request, ...}, or {ok, turn, address, said, ids, turn, ...}, oldest first.
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
  local seen = order[#order] or '-'
  redis.call('HSET', KEYS[4], ARGV[3], table.concat({number, deadline, seen, overdue, parent, request, model}, ' '))
end
local found = {'ok'}
for _, turn in ipairs(order) do
  local parts = redis.call('HMGET', KEYS[2], 'a:' .. turn, 's:' .. turn, 'i:' .. turn)
  found[#found + 1] = turn
  for at = 1, 3 do found[#found + 1] = parts[at] or '' end
end
return found
""")

RECALL_CHAIN = _script("""
-- KEYS head, turns, pending. ARGV tenant, turn, now ms, patience ('0': do not wait), ids only ('1').
-- {missing}, {pending, request}, {conflict}, {broken}, or {ok, said, ids, said, ids, ...}, newest first.
if redis.call('HGET', KEYS[1], 'tenant') ~= ARGV[1] then return {'missing'} end
local turn = ARGV[2]
if redis.call('HEXISTS', KEYS[2], 'a:' .. turn) == 0 then
  local mark = redis.call('HGET', KEYS[3], turn)
  if not mark then return {'missing'} end
  local number, deadline, seen, overdue, parent, request, model = string.match(mark, MARK)
  if tonumber(deadline) <= tonumber(ARGV[3]) then return {'missing'} end
  if overdue == '0' and ARGV[4] ~= '0' then return {'pending', request} end
  redis.call('HSET', KEYS[3], turn, table.concat({number, deadline, seen, '1', parent, request, model}, ' '))
  return {'conflict'}
end
if redis.call('HEXISTS', KEYS[2], 'd:' .. turn) == 1 and ARGV[5] ~= '1' then return {'missing'} end
local found = {'ok'}
while turn ~= '-' do
  local parts = redis.call('HMGET', KEYS[2], 'a:' .. turn, 's:' .. turn, 'i:' .. turn)
  if not parts[2] then return {'broken'} end
  found[#found + 1] = ARGV[5] == '1' and '' or parts[2]
  found[#found + 1] = parts[3] or ''
  turn = string.match(parts[1], '^%d+ ~?(%S+)$')
end
return found
""")

LINK = _script("""
-- KEYS turns, order, pending. ARGV turn. The parent of a turn of a conversation: what its prompt saw last; and whether
-- that is there (1), or was taken back meanwhile (0: the last that is there stands in for it).
local address = redis.call('HGET', KEYS[1], 'a:' .. ARGV[1])
if address then return {string.match(address, '^%d+ ~?(%S+)$'), 1} end
local mark = redis.call('HGET', KEYS[3], ARGV[1])
local seen = mark and ({string.match(mark, MARK)})[3] or '?'
if seen == '-' or redis.call('HEXISTS', KEYS[1], 's:' .. seen) == 1 then return {seen, 1} end
return {redis.call('LINDEX', KEYS[2], -1) or '-', 0}
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
local parent, ids, counts = ARGV[3], ARGV[12], true
if ARGV[2] ~= '' then
  if parent ~= '-' and redis.call('HEXISTS', KEYS[2], 's:' .. parent) == 0 then
    parent, ids = redis.call('LINDEX', KEYS[3], -1) or '-', ''
  end
  counts = ARGV[8] == '1'
  if counts and not redis.call('LPOS', KEYS[3], turn) then
    redis.call('RPUSH', KEYS[3], turn)
    redis.call('HINCRBY', KEYS[1], 'num_turns', 1)
  end
  redis.call('HSET', KEYS[1], 'updated', ARGV[6])
end
for item = 13, #ARGV do redis.call('HSET', KEYS[4], ARGV[item], turn) end
local counted = address and not string.find(address, '~', 1, true)
if counts and not counted and parent ~= '-' then redis.call('HINCRBY', KEYS[2], 'k:' .. parent, 1) end
if redis.call('HGET', KEYS[2], 'k:' .. turn) then ids = '' end  -- theirs are a difference to the old
if ids == '' then redis.call('HDEL', KEYS[2], 'i:' .. turn) else redis.call('HSET', KEYS[2], 'i:' .. turn, ids) end
address = ARGV[5] .. (counts and ' ' or ' ~') .. parent
redis.call('HSET', KEYS[2], 'a:' .. turn, address, 's:' .. turn, ARGV[10], 'm:' .. turn, ARGV[11])
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
  redis.call('HSET', KEYS[2], 'a:first', '0 -')
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
-- {missing}, {pending, request, model} (also for a while after its deadline: how it failed is to come), or
-- {ok, said, meta}.
if redis.call('HGET', KEYS[1], 'tenant') ~= ARGV[1] then return {'missing'} end
local turn = ARGV[2]
if redis.call('HEXISTS', KEYS[2], 'd:' .. turn) == 1 then return {'missing'} end
local parts = redis.call('HMGET', KEYS[2], 's:' .. turn, 'm:' .. turn, 'a:' .. turn)
if parts[3] then return {'ok', parts[1], parts[2]} end
local mark = redis.call('HGET', KEYS[3], turn)
if not mark then return {'missing'} end
local _, deadline, _, _, _, request, model = string.match(mark, MARK)
if tonumber(deadline) + 120000 <= tonumber(ARGV[3]) then return {'missing'} end
return {'pending', request, model}
""")

FIND_ITEM = _script("""
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

REPLACE_SAID = _script("""
-- KEYS head, turns, order, at. ARGV tenant, conversation, turn, old said, new said, nothing left ('1'), item, now ms.
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
redis.call('HDEL', KEYS[4], ARGV[7])
redis.call('HSET', KEYS[1], 'updated', ARGV[8])
if ARGV[6] == '1' then
  redis.call('LREM', KEYS[3], 1, turn)
  redis.call('HSET', KEYS[2], 'd:' .. turn, '1')
  redis.call('HDEL', KEYS[2], 'm:' .. turn)
  if turn ~= 'first' then redis.call('HINCRBY', KEYS[1], 'num_turns', -1) end
end
return said
""")

DELETE_TURN = _script("""
-- KEYS head, turns, order, pending. ARGV tenant, turn, running ('1': even then). 1 deleted, 0 not there, 2 is running.
-- What a later turn builds on stays until that one goes too. A turn leaves its conversation when no later one is left
-- in it: what followed was said after it.
if redis.call('HGET', KEYS[1], 'tenant') ~= ARGV[1] then return 0 end
local turn = ARGV[2]
if redis.call('HEXISTS', KEYS[2], 'd:' .. turn) == 1 then return 0 end
if redis.call('HEXISTS', KEYS[2], 'a:' .. turn) == 0 then
  if redis.call('HEXISTS', KEYS[4], turn) == 0 then return 0 end
  if ARGV[3] ~= '1' then return 2 end
  redis.call('HDEL', KEYS[4], turn)
  redis.call('HSET', KEYS[2], 'd:' .. turn, '1')  -- so that it is not stored when it comes
  if redis.call('PTTL', KEYS[2]) < 0 then redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1])) end
  return 1
end
redis.call('HSET', KEYS[2], 'd:' .. turn, '1')
redis.call('HDEL', KEYS[2], 'm:' .. turn)
local leaving = {turn}
local last = redis.call('LINDEX', KEYS[3], -1)
while last and redis.call('HEXISTS', KEYS[2], 'd:' .. last) == 1 do
  redis.call('RPOP', KEYS[3])
  redis.call('HINCRBY', KEYS[1], 'num_turns', -1)
  leaving[#leaving + 1] = last
  last = redis.call('LINDEX', KEYS[3], -1)
end
local needed = {}
local marks = redis.call('HGETALL', KEYS[4])
for at = 2, #marks, 2 do needed[({string.match(marks[at], MARK)})[5]] = true end
local function is_needed(turn)
  if turn == '-' or redis.call('HEXISTS', KEYS[2], 'd:' .. turn) == 0 or needed[turn] then return true end
  return tonumber(redis.call('HGET', KEYS[2], 'k:' .. turn) or 0) > 0 or redis.call('LPOS', KEYS[3], turn)
end
for _, turn in ipairs(leaving) do
  while not is_needed(turn) and redis.call('HDEL', KEYS[2], 's:' .. turn, 'i:' .. turn, 'k:' .. turn) > 0 do
    local uncounted, parent = string.match(redis.call('HGET', KEYS[2], 'a:' .. turn), '^%d+ (~?)(%S+)$')
    if uncounted == '~' or parent == '-' then break end
    redis.call('HINCRBY', KEYS[2], 'k:' .. parent, -1)
    turn = parent
  end
end
return 1
""")
