local stream, delayed = KEYS[1], KEYS[2]
local group, consumer, resent = ARGV[1], ARGV[2], ARGV[3] == '1'
local results, mine = {}, {}
for at = 4, #ARGV, 3 do
  local id, count, delay = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local result = standing(stream, group, consumer, id, count)
  if result == 1 then
    local member = member_of(id, group, count)
    -- Sent before, and carried out then: it keeps its due time.
    if not (resent and redis.call('ZSCORE', delayed, member)) then
      redis.call('ZADD', delayed, score_of(delay), member)
    end
    mine[#mine + 1] = id
  end
  results[#results + 1] = result
end
if #mine > 0 then
  local command = {'XCLAIM', stream, group, consumer, 0, unpack(mine)}
  -- Its idle time begins now; the delivery count stays.
  command[#command + 1] = 'JUSTID'
  redis.call(unpack(command))
end
return results
