local stream, delayed = KEYS[1], KEYS[2]
local group, consumer, resent, exact = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4] == '1'
local results, ids, set_back = {}, {}, {}
for at = 5, #ARGV, 3 do ids[#ids + 1] = ARGV[at] end
local rows = rows_of(stream, group, ids)
local add, claim = {'ZADD', delayed}, {'XCLAIM', stream, group, consumer, 0}
for nth, id in ipairs(ids) do
  local count, delay = unpack(ARGV, nth * 3 + 3, nth * 3 + 4)
  local result = verdict(rows[id], consumer, '')
  local raised = result == 1 and as_pending(rows[id]).count - count or 0
  if raised < 0 or (raised > 0 and exact) then result = -1 end
  if result == 1 then
    local member = member_of(id, group, count)
    local before = resent and redis.call('ZSCORE', delayed, member)
    -- Sent before, and carried out then: it keeps its due time. One with a minus is from when it was kept.
    if not (before and tonumber(before) >= 0) then
      add[#add + 1] = score_of(tonumber(delay))
      add[#add + 1] = member
    end
    if raised > 0 then
      set_back[#set_back + 1] = {id, count}
    else
      claim[#claim + 1] = id
    end
  end
  results[nth] = result
end
call_if_more(add, 2)
-- Their idle time begins now; the delivery count stays.
claim[#claim + 1] = 'JUSTID'
call_if_more(claim, 6)
-- Their own process has claimed these once more, and finds them parked at the count they had.
for _, each in ipairs(set_back) do
  redis.call('XCLAIM', stream, group, consumer, 0, each[1], 'RETRYCOUNT', each[2], 'JUSTID')
end
return results
