local letters, stream, id = KEYS[1], KEYS[2], ARGV[1]
-- Someone else may have replayed it, or thrown it away.
if #redis.call('XRANGE', letters, id, id) == 0 then return false end
-- What the server refuses ends the script here, and the letter stays where it is.
local replayed = redis.call('XADD', stream, '*', unpack(ARGV, 2))
redis.call('XDEL', letters, id)
return replayed
