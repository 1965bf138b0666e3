local delayed, stream = KEYS[1], KEYS[2]
local group, offset, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
-- Those of a group that is there are in use.
if has_group(stream, group) then return -1 end
local members = redis.call('ZRANGEBYSCORE', delayed, '-inf', '(+inf', 'LIMIT', offset, limit)
local stay = 0
for _, member in ipairs(members) do
  local read, parts = pcall(cmsgpack.unpack, member)
  if read and type(parts) == 'table' and is_parked(parts) and parts[2] == group then
    redis.call('ZREM', delayed, member)
  else
    stay = stay + 1
  end
end
if #members < limit then return -1 end
return stay
