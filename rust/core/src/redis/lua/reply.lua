-- Counts are cut at 32 bits: XNACK FATAL sets the greatest there is.
local stream, target = KEYS[1], KEYS[2]
local group, consumer, id, count = unpack(ARGV, 1, 4)
local entry = redis.call('XPENDING', stream, group, id, id, 1)[1]
if not entry then return 0 end
if entry[2] ~= consumer or math.min(entry[4], 4294967295) ~= tonumber(count) then return -1 end
-- Where this is refused the script ends here, and the entry stays pending.
redis.call('XADD', target, unpack(ARGV, 5))
redis.call('XACK', stream, group, id)
return 1
