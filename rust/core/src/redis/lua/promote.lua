if redis.replicate_commands then redis.replicate_commands() end
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'LIMIT', 0, ARGV[1])
local strange = 0
for _, member in ipairs(due) do
  local read, parts = pcall(cmsgpack.unpack, member)
  if read and type(parts) == 'table' and #parts >= 4 and #parts % 2 == 0 then
    redis.call('XADD', KEYS[2], '*', unpack(parts, 3))
    redis.call('ZREM', KEYS[1], member)
  else
    -- Not ours, so not ours to remove; but it must not stand before everything for ever.
    redis.call('ZADD', KEYS[1], '+inf', member)
    strange = strange + 1
  end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local next = -1
if first[2] and first[2] ~= 'inf' then
  next = math.max(0, math.floor(tonumber(first[2]) - now))
end
return {#due - strange, next, strange}
