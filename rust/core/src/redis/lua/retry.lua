local stream, delayed = KEYS[1], KEYS[2]
local group, consumer, id, count, delay, delete = unpack(ARGV, 1, 6)
local result = standing(stream, group, consumer, id, count)
if result ~= 1 then return result end
delay = tonumber(delay)
if delay < 0 then
  redis.call('XADD', stream, '*', unpack(ARGV, 7))
else
  local now = redis.call('TIME')
  local due = now[1] * 1000 + math.floor(now[2] / 1000) + delay
  local member = cmsgpack.pack({id, group, unpack(ARGV, 7)})
  redis.call('ZADD', delayed, string.format('%.0f', due), member)
end
redis.call('XACK', stream, group, id)
-- A copy was made for this group alone: nobody else needs it, and a retried one must not make the stream grow.
if delete == '1' then redis.call('XDEL', stream, id) end
return 1
