local mine, taken = {}, {}
for at = 3, #ARGV do
  local entry = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[at], ARGV[at], 1)[1]
  -- One that is on no list any more is nobody's: it was acked, or its group is being made again.
  if entry then
    if entry[2] == ARGV[2] then
      mine[#mine + 1] = ARGV[at]
    else
      taken[#taken + 1] = ARGV[at]
    end
  end
end
if #mine > 0 then
  local command = {'XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0}
  for _, id in ipairs(mine) do command[#command + 1] = id end
  -- JUSTID: the idle time starts again, the delivery count stays.
  command[#command + 1] = 'JUSTID'
  redis.call(unpack(command))
end
return taken
