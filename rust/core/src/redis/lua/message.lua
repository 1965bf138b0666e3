local step, owner, ms = ARGV[1], 'working ' .. ARGV[2], ARGV[3]

-- How one mark stands then, or what the server said against it: one that is refused holds up no other.
local function stepped(key)
  local mark = redis.pcall('GET', key)
  local written = false
  if type(mark) == 'table' then
    return mark.err
  elseif mark == 'done' then
    return 2
  elseif mark and mark ~= owner then
    return 0
  elseif step == 'release' then
    written = mark and redis.pcall('DEL', key)
  else
    written = redis.pcall('SET', key, step == 'finish' and 'done' or owner, 'PX', ms)
  end
  return type(written) == 'table' and written.err or 1
end

local states = {}
for at, key in ipairs(KEYS) do
  states[at] = stepped(key)
end
return states
