"""The Lua scripts of the bus: what must happen together happens inside one of them.

Every key of a script carries the hash tag of one partition.
"""

from __future__ import annotations

from wire.bus.script import Script

# Who reads the stream in the sender's own process (see `wire.bus.neighbours`) is given the entry at once.
_DELIVER = """
local function deliver(stream, id, record, at)
  if ARGV[at] == '' then return 1 end
  -- A group that is not there is its reader's affair.
  local found = redis.pcall('XREADGROUP', 'GROUP', ARGV[at], ARGV[at + 1], 'COUNT', 1, 'STREAMS', stream, '>')
  if not found or found.err then return 1 end
  local entry = found[1][2][1]
  if entry[1] ~= id then return {1, entry[1], entry[2]} end -- an older one waited; its record is not ours to read
  local last = at + 2 + ARGV[at + 2]
  local fields = last > at + 2 and redis.call('HMGET', record, unpack(ARGV, at + 3, last)) or {}
  return {1, entry[1], entry[2], fields}
end
"""

ADMIT = Script(
    _DELIVER
    + """
-- KEYS record, stream. ARGV nonce, max length, record ttl ms, now, message, reader's group, its name, number of fields
-- it wants, their names, field, value, ...
-- 1 admitted (or a list: 1, entry id, entry, wanted fields), 0 there already, -1 the stream is full. A repeat of the
-- same call (same nonce) answers 1 again.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return redis.call('HGET', KEYS[1], 'admitted') == ARGV[1] and 1 or 0
end
if redis.call('XLEN', KEYS[2]) >= tonumber(ARGV[2]) then return -1 end
redis.call('HSET', KEYS[1], 'admitted', ARGV[1], unpack(ARGV, 9 + ARGV[8]))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local id = redis.call('XADD', KEYS[2], '*', 'm', ARGV[5], 't', ARGV[4])
return deliver(KEYS[2], id, KEYS[1], 6)
"""
)

HAND_OFF = Script(
    _DELIVER
    + """
-- KEYS from, record, to. ARGV group, entry id, max length, now, message, reader's group, its name, number of fields it
-- wants, their names, field, value, ...
-- 1 done (or a list, as above), 0 somebody else acknowledged it first, 2 cancelled or ended, 3 the next stream is full.
local marks = redis.call('HMGET', KEYS[2], 'admitted', 'cancelled', 'ended')
if not marks[1] or marks[2] or marks[3] then return 2 end
local full = redis.call('XLEN', KEYS[3]) >= tonumber(ARGV[3])
if full then return 3 end
local acked = redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if acked == 0 then return 0 end
redis.call('XDEL', KEYS[1], ARGV[2])
local first = 9 + ARGV[8]
if #ARGV >= first then redis.call('HSET', KEYS[2], unpack(ARGV, first)) end
local id = redis.call('XADD', KEYS[3], '*', 'm', ARGV[5], 't', ARGV[4])
return deliver(KEYS[3], id, KEYS[2], 6)
"""
)

FINISH = Script("""
-- KEYS stream, record (of a job that ends well). ARGV group, entry id. 1 if it was still ours to finish.
local acked = redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if acked == 0 then return 0 end
redis.call('XDEL', KEYS[1], ARGV[2])
if KEYS[2] and redis.call('EXISTS', KEYS[2]) == 1 then redis.call('HSETNX', KEYS[2], 'ended', '') end
return 1
""")

MARK_ENDED = Script("""
-- KEYS record, stream. ARGV entry id (or ''), failure. The failure to send, or nothing: the entry has moved on, or the
-- job ended well. The first failure wins, and a repeat after a crash sends that one again.
if ARGV[1] ~= '' and #redis.call('XRANGE', KEYS[2], ARGV[1], ARGV[1]) == 0 then return false end
if redis.call('EXISTS', KEYS[1]) == 0 then return ARGV[2] end
redis.call('HSETNX', KEYS[1], 'ended', ARGV[2])
return redis.call('HGET', KEYS[1], 'ended')
""")

SET_ASIDE = Script("""
-- KEYS stream, dead letters. ARGV group, entry id, max length, reason. 1 if it was still there.
local entry = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])[1]
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if redis.call('XDEL', KEYS[1], ARGV[2]) == 0 then return 0 end
local why = {'stream', KEYS[1], 'id', ARGV[2], 'reason', ARGV[4]}
for _, word in ipairs(entry[2]) do why[#why + 1] = word end
redis.call('XADD', KEYS[2], 'MAXLEN', ARGV[3], '*', unpack(why))
return 1
""")

CANCEL = Script("""
-- KEYS record. ARGV the mark. The placement ('' if there is none yet), or nothing: the job is unknown or over.
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], 'ended') == 1 then return false end
redis.call('HSET', KEYS[1], 'cancelled', ARGV[1])
return redis.call('HGET', KEYS[1], 'placement') or ''
""")

UPDATE = Script("""
-- KEYS record. ARGV field, value, ... 0 if the record is gone (it must not come back without an expiry).
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV))
return 1
""")

# An entry of a replica's stream is pending with a consumer that is gone, in a group whose name is the replica's affair.
_FORGET = """
local function forget(stream, id)
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do redis.call('XACK', stream, group[2], id) end
  return redis.call('XDEL', stream, id)
end
"""

RE_PLACE = Script(
    _FORGET
    + """
-- KEYS old stream, record, new stream. ARGV entry id, max length, now, message, field, value, ...
-- 1 done, 0 the entry is gone, 2 cancelled or ended, 3 the new stream is full.
if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then return 0 end
if redis.call('EXISTS', KEYS[2]) == 0 then return 2 end
local marks = redis.call('HMGET', KEYS[2], 'cancelled', 'ended')
if marks[1] or marks[2] then return 2 end
if redis.call('XLEN', KEYS[3]) >= tonumber(ARGV[2]) then return 3 end
forget(KEYS[1], ARGV[1])
if #ARGV > 4 then redis.call('HSET', KEYS[2], unpack(ARGV, 5)) end
redis.call('XADD', KEYS[3], '*', 'm', ARGV[4], 't', ARGV[3])
return 1
"""
)

REMOVE = Script(
    _FORGET
    + """
-- KEYS stream. ARGV entry id. 1 if it was there.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
return forget(KEYS[1], ARGV[1])
"""
)

SEND = Script("""
-- KEYS stream. ARGV max length, expiry ms (0: none), nonce, now, message. 0 if the stream is full.
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('XADD', KEYS[1], '*', 'm', ARGV[5], 'n', ARGV[3], 't', ARGV[4])
if ARGV[2] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
""")

PUBLISH = Script("""
-- KEYS stream. ARGV max length, now, nonce, message, ... How many were added.
for at = 3, #ARGV, 2 do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'm', ARGV[at + 1], 'n', ARGV[at], 't', ARGV[2])
end
return (#ARGV - 2) / 2
""")

CLAIM = Script("""
-- KEYS stream. ARGV group, consumer, idle ms, cursor, count.
-- Cursor, claimed {id, fields, times delivered}, ids without payload.
local found = redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], 'COUNT', ARGV[5])
local claimed = {}
for _, entry in ipairs(found[2]) do
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], entry[1], entry[1], 1)[1]
  claimed[#claimed + 1] = {entry[1], entry[2], pending[4]}
end
return {found[1], claimed, found[3] or {}}
""")

KEEP = Script("""
-- KEYS stream. ARGV group, consumer, idle ms, entry id, ...
-- Sets how long these entries have been idle, where they are still ours.
local kept = 0
for at = 4, #ARGV do
  if redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[at], ARGV[at], 1, ARGV[2])[1] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[at], 'IDLE', ARGV[3], 'JUSTID')
    kept = kept + 1
  end
end
return kept
""")

LEAVE = Script("""
-- KEYS stream. ARGV group, consumer, idle ms. Gives back all that is pending with a consumer that leaves in good order:
-- anybody may claim it at once, and the delivery does not count.
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1000, ARGV[2])
for _, row in ipairs(pending) do
  local times = math.max(row[4] - 1, 0)
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, row[1], 'IDLE', ARGV[3], 'RETRYCOUNT', times, 'JUSTID')
end
if #pending == 0 then redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2]) end
return #pending
""")

SWEEP = Script("""
-- KEYS stream. ARGV group, idle ms. Removes consumers that hold nothing and were not seen for long: names are unique.
local removed = 0
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local of = {}
  for at = 1, #row, 2 do of[row[at]] = row[at + 1] end
  if of['pending'] == 0 and of['idle'] > tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], of['name'])
    removed = removed + 1
  end
end
return removed
""")

DROP_IF_EMPTY = Script("""
-- KEYS stream. 1 if it was removed: it holds nothing, so its owner can be forgotten.
if redis.call('XLEN', KEYS[1]) > 0 then return 0 end
return redis.call('DEL', KEYS[1])
""")
