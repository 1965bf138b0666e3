local gone = {}
for at = 2, #ARGV do
  if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[at], ARGV[at], 1) == 0 then
    gone[#gone + 1] = ARGV[at]
  end
end
if #gone == 0 then return 0 end
return redis.call('HDEL', KEYS[2], unpack(gone))
