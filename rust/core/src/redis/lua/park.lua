local stream, delayed = KEYS[1], KEYS[2]
local group, consumer, resent = ARGV[1], ARGV[2], ARGV[3] == '1'
local results = standings(stream, group, consumer, 4, 3)
local add, claim = {'ZADD', delayed}, {'XCLAIM', stream, group, consumer, 0}
for nth, result in ipairs(results) do
  if result == 1 then
    local id, count, delay = unpack(ARGV, nth * 3 + 1, nth * 3 + 3)
    local member = member_of(id, group, count)
    local before = resent and redis.call('ZSCORE', delayed, member)
    -- Sent before, and carried out then: it keeps its due time. One with a minus is from when it was kept.
    if not (before and tonumber(before) >= 0) then
      add[#add + 1] = score_of(tonumber(delay))
      add[#add + 1] = member
    end
    claim[#claim + 1] = id
  end
end
call_if_more(add, 2)
-- Their idle time begins now; the delivery count stays.
claim[#claim + 1] = 'JUSTID'
call_if_more(claim, 6)
return results
