local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local min_idle, cursor = tonumber(ARGV[3]), ARGV[4]
local look, take = tonumber(ARGV[5]), tonumber(ARGV[6])
local pending = redis.call('XPENDING', stream, group, '(' .. cursor, '+', look)
local entries, deleted = {}, {}
local last = cursor
local full = false
for _, seen in ipairs(pending) do
  local id, idle = seen[1], seen[3]
  -- An entry that XNACK handed back has no owner and an idle time of -1: anyone may have it.
  if idle >= min_idle or idle < 0 then
    if #entries == take then full = true break end
    local claimed = redis.call('XCLAIM', stream, group, consumer, 0, id)
    if claimed[1] and claimed[1][2] then
      -- The count that XNACK FATAL sets does not fit Lua's numbers.
      entries[#entries + 1] = {id, claimed[1][2], idle, math.min(seen[4], 4294967295)}
    else
      -- Since 7.0 XCLAIM drops it by itself; before, it has to be acknowledged.
      redis.call('XACK', stream, group, id)
      deleted[#deleted + 1] = id
    end
  end
  last = id
end
if not full and #pending < look then last = '' end
return {last, entries, deleted}
