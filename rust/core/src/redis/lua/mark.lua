local results = standings(KEYS[1], ARGV[1], ARGV[2], 3, 3)
local put, take = {'HSET', KEYS[2]}, {'HDEL', KEYS[2]}
for nth, result in ipairs(results) do
  local id, mark = ARGV[nth * 3], ARGV[nth * 3 + 2]
  if result == 1 and mark == '' then
    take[#take + 1] = id
  elseif result == 1 then
    put[#put + 1] = id
    put[#put + 1] = mark
  end
end
call_if_more(put, 2)
call_if_more(take, 2)
return results
