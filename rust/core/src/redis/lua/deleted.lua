-- The stream of letters, set by the script that follows. No key of it: where the user may not write there, the scan
-- itself must go on.
local letters = false
local deleted, refused, cause = {}, 0, ''

-- Whether the body of a pending entry is there. Without letters that is found by claiming.
local function is_there(stream, id)
  return not letters or #redis.call('XRANGE', stream, id, id) > 0
end

-- Take an entry without a body off the list; where there are letters, one is written in its place, or it stays.
local function remove(stream, group, consumer, id, count)
  if letters then
    local now = redis.call('TIME')
    local mark = 'h:x-dead-letter-'
    local written = redis.pcall('XADD', letters, '*',
      mark .. 'reason', 'deleted', mark .. 'stream', stream, mark .. 'group', group, mark .. 'consumer', consumer,
      mark .. 'entry-id', id, mark .. 'deliveries', string.format('%.0f', math.min(count, 4294967295)),
      mark .. 'time-ms', string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000)))
    if type(written) == 'table' then
      refused = refused + 1
      cause = written.err
      return
    end
  end
  -- Since 7.0 XCLAIM drops it by itself; before, it has to be acknowledged.
  redis.call('XACK', stream, group, id)
  deleted[#deleted + 1] = id
end

