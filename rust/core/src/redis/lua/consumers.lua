-- Reading what is pending behind the greatest id gives nothing and tells the server that the reader lives, on every
-- version: a blocked read does so only since 7.2, and one that only scans not at all. One that is not there stays so.
local group = ARGV[1]
local living = {}
for at = 2, #ARGV do living[ARGV[at]] = true end
local rows = redis.call('XINFO', 'CONSUMERS', KEYS[1], group)
for _, row in ipairs(rows) do
  local name = row[2]
  if living[name] then
    redis.call('XREADGROUP', 'GROUP', group, name, 'COUNT', 1, 'STREAMS', KEYS[1], '18446744073709551615-0')
  end
end
return rows
