"""Pictures of turns, in the hash `turns`: each once, for as long as a turn holds it.

`p:` a picture, by its digest, `n:` how many turns hold it, `q:` by turn, the digests that it holds.
"""

from __future__ import annotations

from wire.messages import PICTURE_DIGEST_BYTES

HOLDING = """
local function release(turns, turn)
  local held = redis.call('HGET', turns, 'q:' .. turn) or ''
  for at = 1, #held, SIZE do
    local digest = string.sub(held, at, at + SIZE - 1)
    if redis.call('HINCRBY', turns, 'n:' .. digest, -1) <= 0 then
      redis.call('HDEL', turns, 'n:' .. digest, 'p:' .. digest)
    end
  end
  redis.call('HDEL', turns, 'q:' .. turn)
end
-- ARGV[first] .. ARGV[last]: digest, picture ('': it is kept already), ... of all that the turn holds from now on.
local function hold(turns, turn, first, last)
  local held = {}
  for at = first, last, 2 do
    if ARGV[at + 1] ~= '' then redis.call('HSETNX', turns, 'p:' .. ARGV[at], ARGV[at + 1]) end
    redis.call('HINCRBY', turns, 'n:' .. ARGV[at], 1)
    held[#held + 1] = ARGV[at]
  end
  release(turns, turn)
  if #held > 0 then redis.call('HSET', turns, 'q:' .. turn, table.concat(held)) end
end
""".replace("SIZE", str(PICTURE_DIGEST_BYTES))
