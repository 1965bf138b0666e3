local stream, letters = KEYS[1], KEYS[2]
local group, consumer, id, count, delete = unpack(ARGV, 1, 5)
local result = standing(stream, group, consumer, id, count)
if result ~= 1 then return result end
local now = redis.call('TIME')
ARGV[#ARGV + 1] = 'h:x-dead-letter-time-ms'
ARGV[#ARGV + 1] = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))
-- What the server refuses ends the script here, and the entry stays as it is.
redis.call('XADD', letters, '*', unpack(ARGV, 6))
redis.call('XACK', stream, group, id)
-- A copy was made for this group alone: nobody else needs it.
if delete == '1' then redis.call('XDEL', stream, id) end
return 1
