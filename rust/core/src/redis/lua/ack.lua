local results = standings(KEYS[1], ARGV[1], ARGV[2], 3, 2)
local ack = {'XACK', KEYS[1], ARGV[1]}
for nth, result in ipairs(results) do
  if result == 1 then ack[#ack + 1] = ARGV[nth * 2 + 1] end
end
call_if_more(ack, 3)
return results
