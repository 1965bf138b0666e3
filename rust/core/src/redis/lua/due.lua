local delayed, stream = KEYS[1], KEYS[2]
local group, consumer = ARGV[1], ARGV[2]
local limit, room, offset = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local keeps_bodiless = ARGV[6] == '1'
local before = string.format('(%.0f', now + 1)
local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', before, 'WITHSCORES', 'LIMIT', offset, limit)
local moved, strange, passed, waiting = 0, 0, 0, 0
local entries, deleted = {}, {}
for at = 1, #due, 2 do
  local member, score = due[at], tonumber(due[at + 1])
  local read, parts = pcall(cmsgpack.unpack, member)
  if not read or type(parts) ~= 'table' then parts = {} end
  if #parts >= 4 and #parts % 2 == 0 then
    redis.call('XADD', stream, '*', unpack(parts, 3))
    redis.call('ZREM', delayed, member)
    moved = moved + 1
  elseif not is_parked(parts) then
    -- Not ours, so not ours to remove; but it must not stand before everything for ever.
    redis.call('ZADD', delayed, '+inf', member)
    strange = strange + 1
  elseif parts[2] ~= group then
    passed = passed + 1
  else
    local id = parts[1]
    local entry = pending_if_any(stream, group, id)
    if not entry or entry.count ~= tonumber(parts[3]) then
      -- Settled meanwhile, or somebody's who was not told of its delay.
      redis.call('ZREM', delayed, member)
    elseif #entries >= room then
      passed, waiting = passed + 1, waiting + 1
    elseif keeps_bodiless and #redis.call('XRANGE', stream, id, id) == 0 then
      redis.call('ZREM', delayed, member)
    else
      local claimed = redis.call('XCLAIM', stream, group, consumer, 0, id)
      redis.call('ZREM', delayed, member)
      if claimed[1] and claimed[1][2] then
        entries[#entries + 1] = {id, claimed[1][2], lain(score, entry.idle), entry.count}
      else
        -- Since 7.0 XCLAIM drops it by itself; before, it has to be acknowledged.
        redis.call('XACK', stream, group, id)
        deleted[#deleted + 1] = id
      end
    end
  end
end
local first = redis.call('ZRANGEBYSCORE', delayed, now + 1, '(+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local next = -1
if first[2] then next = math.floor(tonumber(first[2])) - now end
return {moved, next, strange, #due / 2, passed, waiting, entries, deleted}
