if redis.replicate_commands then redis.replicate_commands() end
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'LIMIT', 0, ARGV[1])
for _, member in ipairs(due) do
  local parts = cmsgpack.unpack(member)
  redis.call('XADD', KEYS[2], '*', unpack(parts, 3))
  redis.call('ZREM', KEYS[1], member)
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if first[2] then
  return {#due, math.max(0, math.floor(tonumber(first[2]) - now))}
end
return {#due, -1}
