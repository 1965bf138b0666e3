local delayed, stream = KEYS[1], KEYS[2]
local group, consumer = ARGV[1], ARGV[2]
local limit, room, offset = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local keeps_bodiless = ARGV[6] == '1'
local before = string.format('(%.0f', now + 1)
local due = redis.call('ZRANGEBYSCORE', delayed, 0, before, 'WITHSCORES', 'LIMIT', offset, limit)
local moved, strange, passed, waiting = 0, sweep_kept(stream, delayed, group), 0, 0
local parked, ids = {}, {}
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
    parked[#parked + 1] = {id = parts[1], count = tonumber(parts[3]), member = member, score = score}
    ids[#ids + 1] = parts[1]
  end
end
local rows = #ids > 0 and has_group(stream, group) and rows_of(stream, group, ids) or {}
local over, claim, claimed = {'ZREM', delayed}, {'XCLAIM', stream, group, consumer, 0}, {}
for _, each in ipairs(parked) do
  each.entry = as_pending(rows[each.id])
  if not each.entry or each.entry.count ~= each.count then
    -- Settled meanwhile, or somebody's who was not told of its delay.
    over[#over + 1] = each.member
  elseif #claimed >= room then
    passed, waiting = passed + 1, waiting + 1
  else
    over[#over + 1] = each.member
    if not (keeps_bodiless and #redis.call('XRANGE', stream, each.id, each.id) == 0) then
      claim[#claim + 1] = each.id
      claimed[#claimed + 1] = each
    end
  end
end
local entries, deleted, bodies = {}, {}, {}
if #claimed > 0 then
  for _, entry in ipairs(redis.call(unpack(claim))) do
    if entry then bodies[entry[1]] = entry[2] end
  end
end
for _, each in ipairs(claimed) do
  if bodies[each.id] then
    entries[#entries + 1] = {each.id, bodies[each.id], lain(each.score, each.entry.idle), each.entry.count}
  else
    -- Since 7.0 XCLAIM drops it by itself; before, it has to be acknowledged.
    redis.call('XACK', stream, group, each.id)
    deleted[#deleted + 1] = each.id
  end
end
call_if_more(over, 2)
local first = redis.call('ZRANGEBYSCORE', delayed, now + 1, '(+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local next = -1
if first[2] then next = math.floor(tonumber(first[2])) - now end
return {moved, next, strange, #due / 2, passed, waiting, entries, deleted}
