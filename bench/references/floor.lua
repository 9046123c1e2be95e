-- A token bucket for many keys at once, in one packed argument and one packed reply.
-- KEYS or, in a cluster, ARGV: the keys. The last of ARGV: events per microsecond, burst, as two 64-bit integers. The reply has, for
-- each key, 1 or 0 and what remains, as a byte and a 64-bit integer.
--
-- A value is a pair: what has been used, and when. It expires between one and two quanta
-- after it is full again, at a multiple of the quantum. So most writes leave the expiry alone,
-- which is half of their cost.
local rate, burst = struct.unpack('<i8i8', table.remove(ARGV))
local quantum = math.max(1000000, math.ceil(burst / rate))
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local keys, values, written, reply = #ARGV > 0 and ARGV or KEYS, {}, {}, {}
if keys == KEYS then
  values = redis.call('MGET', unpack(keys))
else
  for i, key in ipairs(keys) do values[i] = redis.call('GET', key) end
end

local function expiry(used, at)
  return (math.floor((at + math.ceil(used / rate)) / quantum) + 2) * quantum
end

for i, key in ipairs(keys) do
  local value = written[key] or values[i]
  local used, at, expires = 0, now, nil
  if value then
    used, at = struct.unpack('<i8i8', value)
    expires = expiry(used, at)
    used = math.max(used - math.max(now - at, 0) * rate, 0)
    at = math.max(now, at)
  end
  local pass = used < burst
  if pass then
    used = used + 1
    value = struct.pack('<i8i8', used, at)
    written[key] = value
    if expiry(used, at) == expires then
      redis.call('SET', key, value, 'KEEPTTL')
    else
      redis.call('SET', key, value, 'PXAT', expiry(used, at) / 1000)
    end
  end
  reply[i] = struct.pack('<Bi8', pass and 1 or 0, burst - used)
end
return table.concat(reply)
