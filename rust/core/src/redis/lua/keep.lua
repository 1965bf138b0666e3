local stream, delayed = KEYS[1], KEYS[2]
local group, consumer = ARGV[1], ARGV[2]
local results = standings(stream, group, consumer, 3, 3)
-- What was written before stays: that is this very due time, or the entry was parked meanwhile.
local add = {'ZADD', delayed, 'NX'}
for nth, result in ipairs(results) do
  if result == 1 then
    local id, count, delay = unpack(ARGV, nth * 3, nth * 3 + 2)
    add[#add + 1] = '-' .. score_of(tonumber(delay))
    add[#add + 1] = member_of(id, group, count)
  end
end
call_if_more(add, 3)
return results
