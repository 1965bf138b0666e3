local stream, target = KEYS[1], KEYS[2]
local group, consumer, id, count = unpack(ARGV, 1, 4)
local result = standing(stream, group, consumer, id, count)
if result ~= 1 then return result end
-- Where this is refused the script ends here, and the entry stays pending.
redis.call('XADD', target, unpack(ARGV, 5))
redis.call('XACK', stream, group, id)
return 1
