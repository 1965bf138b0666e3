local results, mine = {}, {}
for at = 3, #ARGV, 2 do
  local result = standing(KEYS[1], ARGV[1], ARGV[2], ARGV[at], ARGV[at + 1])
  if result == 1 then mine[#mine + 1] = ARGV[at] end
  results[#results + 1] = result
end
if #mine > 0 then
  redis.call('XACK', KEYS[1], ARGV[1], unpack(mine))
end
return results
