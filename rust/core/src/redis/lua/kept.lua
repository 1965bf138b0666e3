-- An entry that its holder keeps has the score of its due time with a minus before it: no timer hands it over, but who
-- claims it once its holder is gone finds when it is due. Here what is left of those is removed that were due, and are
-- not pending any more or were delivered once more. Some at a time, the oldest first.
local SWEPT = 10

local function sweep_kept(stream, delayed, group)
  local strange, there = 0, nil
  local due = redis.call('ZREVRANGEBYSCORE', delayed, '(0', string.format('-%.0f', now + 1), 'LIMIT', 0, SWEPT)
  for _, member in ipairs(due) do
    local read, parts = pcall(cmsgpack.unpack, member)
    if not read or type(parts) ~= 'table' or not is_parked(parts) then
      redis.call('ZADD', delayed, '+inf', member)
      strange = strange + 1
    elseif parts[2] == group then
      if there == nil then there = has_group(stream, group) end
      local entry = there and pending(stream, group, parts[1])
      if not entry or entry.count ~= tonumber(parts[3]) then redis.call('ZREM', delayed, member) end
    end
  end
  return strange
end

