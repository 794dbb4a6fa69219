"""What a request sees of what was said before it."""

from __future__ import annotations

from cache_svc.history.scripts.mark import script

RECALL_CONVERSATION = script("""
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

RECALL_CHAIN = script("""
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

LINK = script("""
-- KEYS turns, order, pending. ARGV turn. The parent of a turn of a conversation: what its prompt saw last; and whether
-- that is there (1), or was taken back meanwhile (0: the last that is there stands in for it).
local address = redis.call('HGET', KEYS[1], 'a:' .. ARGV[1])
if address then return {string.match(address, '^%d+ ~?(%S+)$'), 1} end
local mark = redis.call('HGET', KEYS[3], ARGV[1])
local seen = mark and ({string.match(mark, MARK)})[3] or '?'
if seen == '-' or redis.call('HEXISTS', KEYS[1], 's:' .. seen) == 1 then return {seen, 1} end
return {redis.call('LINDEX', KEYS[2], -1) or '-', 0}
""")
