-- What the scripts on parked entries share. A member of the sorted set is {id, group, delivery count}: of an entry that
-- was delivered once more since, there is another count, and nothing of its delay is left. The whole part of its score
-- is the time it is due at, in ms. The fraction says, to 1 %, for how long it was parked, in steps of a logarithm.
local STEP, STEPS = 75, 2048
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)

local function member_of(id, group, count)
  return cmsgpack.pack({id, group, count})
end

local function score_of(delay)
  local step = math.min(math.floor(math.log(delay + 1) * STEP), STEPS - 1)
  return string.format('%.11f', now + delay + step / STEPS)
end

local function is_parked(parts)
  return #parts == 3 and string.find(parts[1], '^%d+%-%d+$') ~= nil and string.find(parts[3], '^%d+$') ~= nil
end

-- For how long it lay, where the server says `idle`. That is less where it was claimed early and parked again.
local function lain(score, idle)
  local due = math.floor(score)
  local delay = math.exp(((score - due) * STEPS + 0.5) / STEP) - 1
  local since = math.floor(now - due + delay)
  if idle >= since * 0.98 then return idle end
  return since
end

-- Without its group nothing is pending.
local function has_group(stream, group)
  local seen = redis.pcall('XPENDING', stream, group)
  if not seen.err then return true end
  if not string.find(seen.err, 'NOGROUP') then error(seen) end
  return false
end
