local results = {}
for at = 3, #ARGV, 3 do
  local id, mark = ARGV[at], ARGV[at + 2]
  local result = standing(KEYS[1], ARGV[1], ARGV[2], id, ARGV[at + 1])
  if result == 1 then
    if mark == '' then
      redis.call('HDEL', KEYS[2], id)
    else
      redis.call('HSET', KEYS[2], id, mark)
    end
  end
  results[#results + 1] = result
end
return results
