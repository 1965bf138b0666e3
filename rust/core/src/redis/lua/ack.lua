-- Counts are cut at 32 bits: XNACK FATAL sets the greatest there is.
local results, mine = {}, {}
for at = 3, #ARGV, 2 do
  local entry = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[at], ARGV[at], 1)[1]
  local result = 0
  if entry then
    if entry[2] == ARGV[2] and math.min(entry[4], 4294967295) == tonumber(ARGV[at + 1]) then
      result = 1
      mine[#mine + 1] = ARGV[at]
    else
      result = -1
    end
  end
  results[#results + 1] = result
end
if #mine > 0 then
  redis.call('XACK', KEYS[1], ARGV[1], unpack(mine))
end
return results
