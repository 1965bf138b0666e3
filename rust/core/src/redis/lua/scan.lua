local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local min_idle, cursor = tonumber(ARGV[3]), ARGV[4]
local look, take = tonumber(ARGV[5]), tonumber(ARGV[6])
local pending = redis.call('XPENDING', stream, group, '(' .. cursor, '+', look)
if ARGV[7] ~= '' then letters = ARGV[7] end
-- Entries without a body in one step: so many take the server some milliseconds. Letters take longer than acks.
local most = letters and take or take * 3
local entries = {}
local last = cursor
local full = false
for _, seen in ipairs(pending) do
  local id, idle = seen[1], seen[3]
  -- An entry that XNACK handed back has no owner and an idle time of -1: anyone may have it.
  if idle >= min_idle or idle < 0 then
    if #entries == take or #deleted + refused == most then full = true break end
    local claimed = is_there(stream, id) and redis.call('XCLAIM', stream, group, consumer, 0, id)
    if claimed and claimed[1] and claimed[1][2] then
      -- The count that XNACK FATAL sets does not fit Lua's numbers.
      entries[#entries + 1] = {id, claimed[1][2], idle, math.min(seen[4], 4294967295)}
    else
      remove(stream, group, consumer, id, seen[4])
    end
  end
  last = id
end
if not full and #pending < look then last = '' end
return {last, entries, deleted, refused, cause}
