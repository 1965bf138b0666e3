local step, owner, ms = ARGV[1], 'working ' .. ARGV[2], ARGV[3]
local states = {}
for at, key in ipairs(KEYS) do
  local mark = redis.call('GET', key)
  local state = 1
  if mark == 'done' then
    state = 2
  elseif mark and mark ~= owner then
    state = 0
  elseif step == 'release' then
    if mark then redis.call('DEL', key) end
  else
    redis.call('SET', key, step == 'finish' and 'done' or owner, 'PX', ms)
  end
  states[at] = state
end
return states
