"""What lies before a call on the stream that all history desks read."""

from __future__ import annotations

from wire.bus.script import Script

TURNS_BEFORE = Script("""
-- KEYS stream. ARGV group, entry, most ms, tag. How many turns before the entry a desk got so lately and still has.
local found = 0
for _, held in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '(' .. ARGV[2], 1000)) do
  if held[3] <= tonumber(ARGV[3]) then
    local entry = redis.call('XRANGE', KEYS[1], held[1], held[1])[1]
    if entry and string.find(string.sub(entry[2][2], 1, 16), ARGV[4], 1, true) then found = found + 1 end
  end
end
return found
""")
