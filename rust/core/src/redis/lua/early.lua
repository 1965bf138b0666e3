local stream, delayed = KEYS[1], KEYS[2]
local group, consumer = ARGV[1], ARGV[2]
local answers = {}
if redis.call('EXISTS', delayed) == 0 then return answers end
local there
for at = 3, #ARGV, 3 do
  local id, earlier, idle = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  -- A claimer that died before it looked here has raised the count; a few of those are seen through.
  for count = earlier, math.max(1, earlier - 4), -1 do
    local member = member_of(id, group, string.format('%.0f', count))
    local score = redis.call('ZSCORE', delayed, member)
    if score then
      local kept = tonumber(score) < 0
      score = math.abs(tonumber(score))
      local answer = -1
      if math.floor(score) <= now then
        redis.call('ZREM', delayed, member)
        answer = lain(score, idle)
      else
        if there == nil then there = has_group(stream, group) end
        local entry = there and pending(stream, group, id)
        if entry and entry.consumer == consumer and entry.count == earlier + 1 then
          if kept or count ~= earlier then
            redis.call('ZREM', delayed, member)
            redis.call('ZADD', delayed, string.format('%.11f', score), member_of(id, group, ARGV[at + 1]))
          end
          redis.call('XCLAIM', stream, group, consumer, 0, id, 'RETRYCOUNT', earlier, 'JUSTID')
        end
      end
      answers[#answers + 1] = {id, answer}
      break
    end
  end
end
return answers
