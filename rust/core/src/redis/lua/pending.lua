-- Counts are cut at 32 bits: XNACK FATAL sets the greatest there is, which does not fit Lua's numbers.
local function as_pending(seen)
  return seen and {consumer = seen[2], idle = seen[3], count = math.min(seen[4], 4294967295)}
end

local function pending(stream, group, id)
  return as_pending(redis.call('XPENDING', stream, group, id, id, 1)[1])
end

-- 1: pending under this consumer's name at this count; 0: not pending; -1: it is another's, or was delivered once more.
local function standing(stream, group, consumer, id, count)
  local entry = pending(stream, group, id)
  if not entry then return 0 end
  if entry.consumer == consumer and entry.count == tonumber(count) then return 1 end
  return -1
end

