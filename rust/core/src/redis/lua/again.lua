local stream, delayed = KEYS[1], KEYS[2]
local group, consumer, resent, exact = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4] == '1'
local results = {}
for at = 5, #ARGV, 2 do
  local id, count = ARGV[at], tonumber(ARGV[at + 1])
  local entry = pending(stream, group, id)
  local result = 0
  if entry then
    -- Sent before, and carried out then, or claimed once more by its own process meanwhile: it counts once.
    local most = exact and (resent and count + 1 or count) or entry.count
    if entry.consumer == consumer and entry.count >= count and entry.count <= most then
      local next = math.max(entry.count, count + 1)
      local claimed = redis.call('XCLAIM', stream, group, consumer, 0, id, 'RETRYCOUNT', next, 'JUSTID')
      -- Without a body it is off the list now.
      result = #claimed
      -- It waits no more. A key of another type holds no due time of it either.
      redis.pcall('ZREM', delayed, member_of(id, group, ARGV[at + 1]))
    else
      result = -1
    end
  end
  results[#results + 1] = result
end
return results
