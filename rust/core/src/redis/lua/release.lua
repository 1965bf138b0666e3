local released = 0
local mine = {}
for at = 4, #ARGV, 2 do
  local entry = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[at], ARGV[at], 1)[1]
  if entry and entry[2] == ARGV[2] then
    released = released + 1
    if ARGV[3] == '1' then
      mine[#mine + 1] = ARGV[at]
    else
      -- A delivery time of zero makes it claimable at once, whatever the min_idle.
      redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[at], 'TIME', 0, 'RETRYCOUNT', ARGV[at + 1], 'JUSTID')
    end
  end
end
if #mine > 0 then
  redis.call('XNACK', KEYS[1], ARGV[1], 'SILENT', 'IDS', #mine, unpack(mine))
end
return released
