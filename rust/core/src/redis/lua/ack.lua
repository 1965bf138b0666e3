local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local ids = {unpack(ARGV, 3)}
local rows = rows_of(stream, group, ids)
local results, ack = {}, {'XACK', stream, group}
for nth, id in ipairs(ids) do
  results[nth] = verdict(rows[id], consumer, '')
  if results[nth] == 1 then ack[#ack + 1] = id end
end
call_if_more(ack, 3)
return results
