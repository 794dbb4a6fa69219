"""The life of a turn: admitted, stored, read, deleted."""

from __future__ import annotations

from cache_svc.history.scripts.mark import script
from cache_svc.history.scripts.pictures import HOLDING
from wire.bus.script import Script

ADMIT = Script("""
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

STORE = Script(
    HOLDING
    + """
-- KEYS head, turns, order, at, pending. ARGV tenant, conversation, parent, turn, attempt, now ms, ttl ms,
-- in order ('1'), title, said, meta, ids, number of the words that follow of pictures, these, item id, ...
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
local words = tonumber(ARGV[13])
hold(KEYS[2], turn, 14, 13 + words)
for item = 14 + words, #ARGV do redis.call('HSET', KEYS[4], ARGV[item], turn) end
local counted = address and not string.find(address, '~', 1, true)
if counts and not counted and parent ~= '-' then redis.call('HINCRBY', KEYS[2], 'k:' .. parent, 1) end
if redis.call('HGET', KEYS[2], 'k:' .. turn) then ids = '' end  -- theirs are a difference to the old
if ids == '' then redis.call('HDEL', KEYS[2], 'i:' .. turn) else redis.call('HSET', KEYS[2], 'i:' .. turn, ids) end
address = ARGV[5] .. (counts and ' ' or ' ~') .. parent
redis.call('HSET', KEYS[2], 'a:' .. turn, address, 's:' .. turn, ARGV[10], 'm:' .. turn, ARGV[11])
if ARGV[2] ~= '' and ARGV[9] ~= '' and redis.call('HSETNX', KEYS[1], 'title', ARGV[9]) == 1 then
  redis.call('HSET', KEYS[1], 'titled', turn)  -- whose words they are
end
redis.call('HDEL', KEYS[5], turn)
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[7]) end
return 1
"""
)

READ_TURN = script("""
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

UNDER_WAY = script("""
-- KEYS pending. ARGV now ms. Turn, request, turn, ... of a conversation's turns that are admitted and not stored, the
-- first to come first.
local found = {}
local marks = redis.call('HGETALL', KEYS[1])
for at = 1, #marks, 2 do
  local number, deadline, _, _, parent, request = string.match(marks[at + 1], MARK)
  if parent == '-' and tonumber(deadline) > tonumber(ARGV[1]) then
    found[#found + 1] = {tonumber(number), marks[at], request}
  end
end
table.sort(found, function(one, other) return one[1] < other[1] end)
local words = {}
for _, each in ipairs(found) do
  words[#words + 1] = each[2]
  words[#words + 1] = each[3]
end
return words
""")

DELETE_TURN = script(
    HOLDING
    + """
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
if redis.call('HGET', KEYS[1], 'titled') == turn then redis.call('HDEL', KEYS[1], 'title', 'titled') end
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
    release(KEYS[2], turn)
    local uncounted, parent = string.match(redis.call('HGET', KEYS[2], 'a:' .. turn), '^%d+ (~?)(%S+)$')
    if uncounted == '~' or parent == '-' then break end
    redis.call('HINCRBY', KEYS[2], 'k:' .. parent, -1)
    turn = parent
  end
end
return 1
"""
)
