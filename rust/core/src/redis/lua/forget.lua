-- Looked at and deleted in one step: one that has got an entry or was heard of meanwhile stays.
local group, idle = ARGV[1], tonumber(ARGV[2])
local asked, forgotten = {}, {}
for at = 3, #ARGV do asked[ARGV[at]] = true end
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], group)) do
  local of = {}
  for at = 1, #row, 2 do of[row[at]] = row[at + 1] end
  if asked[of.name] and of.pending == 0 and of.idle >= idle then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], group, of.name)
    forgotten[#forgotten + 1] = of.name
  end
end
return forgotten
