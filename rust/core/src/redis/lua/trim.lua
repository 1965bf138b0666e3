-- All of it is one step: a group that reads, falls back or is made meanwhile is seen by the next one.
if redis.replicate_commands then redis.replicate_commands() end
local stream, policy, figure, limit = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

-- Ids hold numbers that do not fit Lua's: they are compared and counted on as text.
local function less(one, other)
  local ms, seq = string.match(one, '(%d+)-(%d+)')
  local other_ms, other_seq = string.match(other, '(%d+)-(%d+)')
  if #ms ~= #other_ms then return #ms < #other_ms end
  if ms ~= other_ms then return ms < other_ms end
  if #seq ~= #other_seq then return #seq < #other_seq end
  return seq < other_seq
end

local function after(id)
  local ms, seq = string.match(id, '(%d+)-(%d+)')
  if seq == '18446744073709551615' then return id end
  local head, nines = string.match(seq, '^(%d-)(9*)$')
  if head == '' then
    head = '1'
  else
    head = string.sub(head, 1, -2) .. (tonumber(string.sub(head, -1)) + 1)
  end
  return ms .. '-' .. head .. string.rep('0', #nines)
end

local length = redis.call('XLEN', stream)
local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
local budget, cutoff = limit, nil
if policy == 'length' then budget = math.min(limit, length - figure) end
if policy == 'age' then
  local now = redis.call('TIME')
  cutoff = string.format('%.0f-0', math.max(0, now[1] * 1000 + math.floor(now[2] / 1000) - figure))
end
if not first or budget <= 0 or (cutoff and not less(first[1], cutoff)) then return {0, 0, {}} end

local ours, missing = {}, 0
for at = 4, #ARGV do
  ours[ARGV[at]] = true
  missing = missing + 1
end
-- From which entry on some group needs them, from which one of ours does, and what it has before it.
local needed, our_needed, our_most = nil, nil, 0
local groups = {}
for _, row in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local of = {}
  for at = 1, #row, 2 do of[row[at]] = row[at + 1] end
  local needs = after(of['last-delivered-id'])
  -- The next entry that there is: another group may need the same one, as pending.
  local unread = redis.call('XRANGE', stream, needs, '+', 'COUNT', 1)[1]
  if unread then needs = unread[1] end
  if of.pending > 0 then
    -- A pending entry without a body, before the first there is, needs nothing any more.
    local oldest = redis.call('XPENDING', stream, of.name, first[1], '+', 1)[1]
    if oldest and less(oldest[1], needs) then needs = oldest[1] end
  end
  if not needed or less(needs, needed) then needed = needs end
  if ours[of.name] then
    missing = missing - 1
    if not our_needed or less(needs, our_needed) then our_needed = needs end
    our_most = math.max(our_most, of.pending + (of.lag or length))
  end
  groups[#groups + 1] = {of.name, of.pending, of.lag or -1, needs}
end
-- A group of ours that was lost is made again where it stood: what it had not settled must still be there.
if missing > 0 or not needed then return {0, 0, {}} end

local upto = needed
if cutoff and less(cutoff, upto) then upto = cutoff end
local removed = redis.call('XTRIM', stream, 'MINID', '~', upto, 'LIMIT', budget)
if removed == 0 then
  -- What stands before it in the first node, which is not removed as a whole.
  local rest = redis.call('XRANGE', stream, '-', '(' .. upto, 'COUNT', math.min(budget, 100))
  if #rest > 0 then removed = redis.call('XTRIM', stream, 'MAXLEN', length - #rest) end
end
if removed > 0 then return {removed, 0, {}} end

-- Nothing may go: who is in the way of what should.
local over, behind = 1, cutoff
if policy == 'length' then over, behind = length - figure, after(needed) end
if policy == 'acked' then over, behind = math.max(0, length - our_most), our_needed or '0-0' end
local holders = {}
for _, group in ipairs(groups) do
  if less(group[4], behind) and not (policy == 'acked' and ours[group[1]]) then
    holders[#holders + 1] = {group[1], group[2], group[3]}
  end
end
if #holders == 0 then over = 0 end
return {0, over, holders}
