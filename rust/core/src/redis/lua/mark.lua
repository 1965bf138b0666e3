-- Counts are cut at 32 bits: XNACK FATAL sets the greatest there is.
local results = {}
for at = 3, #ARGV, 3 do
  local id, count, mark = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
  local entry = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1)[1]
  local result = 0
  if entry then
    if entry[2] == ARGV[2] and math.min(entry[4], 4294967295) == count then
      result = 1
      if mark == '' then
        redis.call('HDEL', KEYS[2], id)
      else
        redis.call('HSET', KEYS[2], id, mark)
      end
    else
      result = -1
    end
  end
  results[#results + 1] = result
end
return results
