local stream, group, consumer, uncounted = KEYS[1], ARGV[1], ARGV[2], ARGV[3] == '1'
if ARGV[4] ~= '' then letters = ARGV[4] end
local entries = {}
for at = 5, #ARGV do
  local id = ARGV[at]
  local seen = redis.call('XPENDING', stream, group, id, id, 1)[1]
  if seen and seen[2] == consumer then
    -- The count that XNACK FATAL sets does not fit Lua's numbers.
    local claimed, count = nil, math.min(seen[4], 4294967295)
    if not is_there(stream, id) then
      claimed = {}
    elseif uncounted then
      claimed = redis.call('XCLAIM', stream, group, consumer, 0, id, 'RETRYCOUNT', count)
      count = count - 1
    else
      claimed = redis.call('XCLAIM', stream, group, consumer, 0, id)
    end
    if claimed[1] and claimed[1][2] then
      entries[#entries + 1] = {id, claimed[1][2], seen[3], count}
    else
      remove(stream, group, consumer, id, seen[4])
    end
  end
end
return {entries, deleted, refused, cause}
