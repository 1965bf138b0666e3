local stream, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local min_idle, cursor = tonumber(ARGV[3]), ARGV[4]
local look, take, which = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local held = {}
for at = 8, #ARGV do held[ARGV[at]] = true end
local pending
if which == 'idle' then
  pending = redis.call('XPENDING', stream, group, '(' .. cursor, '+', look)
else
  pending = redis.call('XPENDING', stream, group, '(' .. cursor, '+', look, consumer)
end
local entries, deleted = {}, {}
local last = cursor
local full = false
for _, seen in ipairs(pending) do
  local id, idle, count = seen[1], seen[3], seen[4]
  -- An entry that XNACK handed back has no owner and an idle time of -1: anyone may have it.
  if not held[id] and (which ~= 'idle' or idle >= min_idle or idle < 0) then
    if #entries == take then full = true break end
    local claimed
    if which == 'uncounted' then
      claimed = redis.call('XCLAIM', stream, group, consumer, 0, id, 'RETRYCOUNT', count)
      count = count - 1
    else
      claimed = redis.call('XCLAIM', stream, group, consumer, 0, id)
    end
    if claimed[1] and claimed[1][2] then
      entries[#entries + 1] = {id, claimed[1][2], idle, count}
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
